"""Scenarios in which nothing goes wrong: alone, in company, with a warm prefix."""

import asyncio

from launch.torture.comparison import Outcome, Verdict
from launch.torture.errors import AskError
from launch.torture.questions import Question, families, longer
from launch.torture.workbench import Result, Workbench

_MIXES = 3
_MAX_DELAY_S = 0.2


async def alone(bench: Workbench) -> Result:
    """Ask each question alone, and all of them again: the first answers are the references.

    A question that is answered in two ways has no reference, and is asked no more.
    """
    result = Result("alone")
    result.outcomes += await bench.refer(bench.questions)
    again = await bench.ask_in_turn(bench.known)
    for question, outcome in zip(bench.known, again, strict=True):
        if outcome.verdict is not Verdict.EQUAL:
            del bench.references[question]
    result.outcomes += again
    left_out = len(bench.questions) - len(bench.known)
    if left_out:
        result.notes.append(f"{left_out} questions have no one answer: asked no more")
    return result


async def in_company(bench: Workbench) -> Result:
    """Ask all at once, then in mixes: any questions, each any number of times, at any time."""
    result = Result("in company")
    result.outcomes += await bench.ask_all(bench.known)
    for _ in range(_MIXES if bench.known else 0):
        mix = bench.rng.choices(bench.known, k=bench.rng.randint(2, max(2, len(bench.known))))
        result.outcomes += await asyncio.gather(*(_later(bench, question) for question in mix))
    return result


async def _later(bench: Workbench, question: Question) -> Outcome:
    await asyncio.sleep(bench.rng.uniform(0, _MAX_DELAY_S))
    return await bench.ask(question)


async def warm_prefix(bench: Workbench) -> Result:
    """Ask after longer prompts that begin alike; then many with one beginning at once."""
    result = Result("warm prefix")
    refused = 0
    for question in bench.known:
        before = longer(bench.rng, question, bench.max_words * 2)
        try:
            await bench.server.ask(before)
        except AskError:
            refused += 1
        result.outcomes.append(await bench.ask(question))
    for family in families(bench.known):
        result.outcomes += await bench.ask_all(family * 2)
    if refused:
        result.notes.append(f"{refused} longer prompts were not answered")
    return result
