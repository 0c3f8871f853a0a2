"""What is asked: prompts of many lengths, greedy and sampled, made from a seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Of an everyday text, so that many continuations are about as likely: the sums of a batch that are
# rounded another way show in which token is taken.
_TEXT = """
the of and a to in is it that was for on are as with his they at be this from have or by one had not
but what all were when we there can an your which their if do will each about how up out them then
she many some so these would other into has more two like him time see no could people my than first
water been call who its now find long down day did get come made may part list class function value
string return object method name number type file error line
"""
_WORDS = tuple(_TEXT.split())
FAMILY = 4
# Sampled questions take these in turn: temperature, top_p, top_k (0 for all).
_SAMPLING = ((1.0, 1.0, 0), (0.8, 0.95, 0), (1.2, 1.0, 40))


@dataclass(frozen=True, slots=True)
class Question:
    """A request that is sent many times.

    Attributes:
        name: by which the report names it.
        prompt: text.
        max_tokens: of the answer.
        temperature: 0 for the likeliest token.
        top_p: probability that is kept.
        top_k: most tokens that are kept; 0 for all.
        seed: of a sampled one; None for a greedy one.
        family: of those whose prompts begin alike; None for one that stands alone.
    """

    name: str
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    family: int | None = None


def words(rng: random.Random, number: int) -> str:
    """Return a text of words at random."""
    return " ".join(rng.choices(_WORDS, k=number))


def longer(rng: random.Random, question: Question, max_words: int) -> Question:
    """Return a question whose prompt begins with that of another, and goes on."""
    room = max_words - len(question.prompt.split())
    prompt = f"{question.prompt} {words(rng, rng.randint(1, max(1, room)))}"
    return replace(question, name=f"{question.name}, longer", prompt=prompt)


def make_questions(
    rng: random.Random,
    number: int,
    *,
    max_words: int,
    max_tokens: int,
    with_seeds: bool,
    with_top_k: bool,
) -> tuple[Question, ...]:
    """Make questions; half of them in families of four whose prompts begin alike.

    Args:
        rng: draws them.
        number: how many.
        max_words: of a prompt, at least 8.
        max_tokens: of an answer.
        with_seeds: every other one is sampled, with a seed.
        with_top_k: some of those keep the likeliest tokens alone.
    """
    questions = []
    beginning, alone = "", number - number // 2
    for index in range(number):
        family = None if index < alone else (index - alone) // FAMILY
        if family is None:
            prompt = words(rng, _length(rng, 2, max_words))
        else:
            if (index - alone) % FAMILY == 0:
                beginning = words(rng, _length(rng, 2, max(2, max_words * 3 // 4)))
            prompt = f"{beginning} {words(rng, _length(rng, 1, max(1, max_words // 4)))}"
        question = Question(f"greedy {index}", prompt, max_tokens, family=family)
        if with_seeds and index % 2:
            temperature, top_p, top_k = _SAMPLING[index // 2 % len(_SAMPLING)]
            question = replace(
                question,
                name=f"sampled {index}",
                temperature=temperature,
                top_p=top_p,
                top_k=top_k if with_top_k else 0,
                seed=rng.randrange(2**31),
            )
        questions.append(question)
    return tuple(questions)


def long_questions(
    rng: random.Random, number: int, num_words: int, max_tokens: int
) -> tuple[Question, ...]:
    """Make greedy questions with prompts of one length, which have nothing in common."""
    return tuple(
        Question(f"long {index}", words(rng, num_words), max_tokens) for index in range(number)
    )


def families(questions: Sequence[Question]) -> list[list[Question]]:
    """Return those whose prompts begin alike, family by family."""
    found: dict[int, list[Question]] = {}
    for question in questions:
        if question.family is not None:
            found.setdefault(question.family, []).append(question)
    return list(found.values())


def _length(rng: random.Random, least: int, most: int) -> int:
    """Draw a length; each order of magnitude is as likely."""
    return round(math.exp(rng.uniform(math.log(least), math.log(max(least, most)))))
