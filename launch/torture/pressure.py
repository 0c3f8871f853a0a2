"""Long requests until caches overflow, and the questions among them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from launch.torture.answers import Received
from launch.torture.comparison import Outcome, Verdict
from launch.torture.questions import Question, long_questions
from launch.torture.workbench import Result, Workbench

_NUM_LONG = 4
_FIRST_LOAD = 8
MAX_LOAD = 128  # that doubling comes to
_MOST_LOAD = 512


@dataclass(slots=True)
class _Times:
    """When the first and the last event of an answer came; both 0 where none did."""

    first: float = 0.0
    last: float = 0.0

    def note(self, _: Received) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last


async def pressure(bench: Workbench, num_tokens: int) -> Result:
    """Ask all questions among many long ones.

    Args:
        bench: to work at.
        num_tokens: of the long ones, prompts and answers together; 512 requests at most. 0 to begin
            with a few and double them, until one waits for another's end or there are MAX_LOAD.
    """
    result = Result("pressure")
    long = long_questions(bench.rng, _NUM_LONG, bench.long_words, bench.long_tokens)
    result.outcomes += await bench.refer(long)
    long = tuple(question for question in long if question in bench.references)
    if not long:
        result.notes.append("no long question was answered alone: nothing else was asked")
        return result
    size = _size(bench)
    load = _FIRST_LOAD if num_tokens == 0 else max(1, min(_MOST_LOAD, -(-num_tokens // size)))
    while True:
        began = time.monotonic()
        outcomes, is_queued = await _press(bench, [long[i % len(long)] for i in range(load)])
        result.outcomes += outcomes
        took_s = time.monotonic() - began
        errors = sum(outcome.verdict is Verdict.ERROR for outcome in outcomes)
        is_last = num_tokens or is_queued or errors or load == MAX_LOAD
        if is_last or took_s > bench.server.timeout_s / 3:
            break
        load *= 2
    seen = "some waited for others' end" if is_queued else "none waited for another's end"
    if errors:
        seen += f", {errors} answers did not come"
    result.notes.append(f"{load} long requests at once, about {load * size:,} tokens: {seen}")
    return result


def _size(bench: Workbench) -> int:
    """Return about how many tokens a long question and its answer have."""
    return round(bench.long_words * bench.tokens_per_word) + bench.long_tokens


async def _press(bench: Workbench, load: Sequence[Question]) -> tuple[list[Outcome], bool]:
    """Ask a load and all questions at once.

    Returns:
        Outcomes, and whether one of the load began after another had ended: it was queued.
    """
    times = [_Times() for _ in load]
    pressed = (bench.ask(question, own.note) for question, own in zip(load, times, strict=True))
    outcomes = await asyncio.gather(*pressed, *map(bench.ask, bench.known))
    begun = [own for own in times if own.first]
    is_queued = bool(begun) and max(own.first for own in begun) > min(own.last for own in begun)
    return outcomes, is_queued
