"""What differs between an answer and the reference."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from launch.torture.answers import Answer, Cut


class Verdict(StrEnum):
    """What came of a question."""

    EQUAL = "equal"
    CHANGED = "changed"
    REPEATED = "repeated"
    LOST = "lost"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How the log-probabilities of the tokens that are the same compare.

    Attributes:
        num_compared: tokens.
        num_differing: that have not the same number.
        largest_difference: of two of them.
    """

    num_compared: int = 0
    num_differing: int = 0
    largest_difference: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of asking a question once.

    Attributes:
        question: its name.
        verdict: of the answer's text and tokens.
        position: of the first token that differs, or character where there are no tokens; of what
            is repeated or lost, its first. None where there is none.
        detail: what differs, or the error.
        logprobs: compared up to there.
    """

    question: str
    verdict: Verdict
    position: int | None = None
    detail: str = ""
    logprobs: Logprobs = Logprobs()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs, log-probabilities included."""
        return self.verdict is Verdict.EQUAL and not self.logprobs.num_differing


def compare(question: str, reference: Answer, answer: Answer, cuts: Sequence[Cut] = ()) -> Outcome:
    """Compare an answer with the reference: tokens where both have them, text and how it ended.

    Args:
        question: its name.
        reference: the answer alone.
        answer: to compare.
        cuts: where its stream broke and went on; what is repeated or lost there is found.
    """
    has_tokens = bool(reference.tokens and answer.tokens)
    expected: Sequence[object] = reference.tokens if has_tokens else reference.text
    got: Sequence[object] = answer.tokens if has_tokens else answer.text
    unit = "token" if has_tokens else "character"
    position = _first_difference(expected, got)
    logprobs = _compare_logprobs(reference, answer, position)
    if position is not None:
        places = [cut.num_tokens if has_tokens else cut.num_characters for cut in cuts]
        verdict, begin, number = _explain(expected, got, places)
        detail = (
            f"{number} {unit}{'s' * (number != 1)} {verdict}"
            if verdict is not Verdict.CHANGED
            else f"{_excerpt(expected, position)}, got {_excerpt(got, position)}"
        )
        begin = position if verdict is Verdict.CHANGED else begin
        return Outcome(question, verdict, begin, f"{unit} {begin}: {detail}", logprobs)
    if reference.text != answer.text:
        at = _first_difference(reference.text, answer.text)
        assert at is not None, "the texts differ"
        detail = f"{_excerpt(reference.text, at)}, got {_excerpt(answer.text, at)}"
        detail = f"the same tokens, character {at}: {detail}"
        return Outcome(question, Verdict.CHANGED, len(got), detail, logprobs)
    if reference.finish_reason != answer.finish_reason:
        detail = f"finish_reason: {reference.finish_reason}, got {answer.finish_reason}"
        return Outcome(question, Verdict.CHANGED, len(got), detail, logprobs)
    return Outcome(question, Verdict.EQUAL, logprobs=logprobs)


def _first_difference(expected: Sequence[object], got: Sequence[object]) -> int | None:
    for position, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _compare_logprobs(reference: Answer, answer: Answer, position: int | None) -> Logprobs:
    """Compare log-probabilities of the tokens before the first that differs."""
    if not reference.logprobs or not answer.logprobs:
        return Logprobs()
    if reference.tokens and answer.tokens:
        pairs = list(zip(reference.logprobs, answer.logprobs, strict=False))[:position]
    elif position is None:
        pairs = list(zip(reference.logprobs, answer.logprobs, strict=False))
    else:
        return Logprobs()
    differences = [abs(one - other) for one, other in pairs if not _is_same(one, other)]
    return Logprobs(len(pairs), len(differences), max(differences, default=0.0))


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _explain(
    expected: Sequence[object], got: Sequence[object], places: Sequence[int]
) -> tuple[Verdict, int, int]:
    """Return what went wrong where a stream went on: verdict, first position, and how many.

    Each part between two cuts is looked for in the reference; one that is found earlier than where
    the part before ended repeats, one that is found later has lost what is between.
    """
    changed = Verdict.CHANGED, 0, 0
    if not places:
        return changed
    found = changed
    at = 0
    bounds = [0, *places, len(got)]
    for begin, end in itertools.pairwise(bounds):
        part = got[begin:end]
        start = _find(expected, part, at) if begin else 0
        if start is None or expected[start : start + len(part)] != part:
            return changed
        if start != at and found is changed:
            verdict = Verdict.REPEATED if start < at else Verdict.LOST
            found = verdict, min(start, at), abs(start - at)
        at = start + len(part)
    if at < len(expected) and found is changed:
        return Verdict.LOST, at, len(expected) - at
    return found


def _find(expected: Sequence[object], part: Sequence[object], near: int) -> int | None:
    """Return where the reference has a part, as near to a position as it has it."""
    places = [
        start
        for start in range(len(expected) - len(part) + 1)
        if expected[start : start + len(part)] == part
    ]
    return min(places, key=lambda start: abs(start - near), default=None)


def _excerpt(sequence: Sequence[object], position: int) -> str:
    if position >= len(sequence):
        return "the end"
    if isinstance(sequence, str):
        return repr(sequence[position : position + 16])
    return repr(sequence[position])
