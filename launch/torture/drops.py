"""Clients that disconnect at random events, among others that do not, and some that come back."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from launch.torture.answers import Received
from launch.torture.comeback import Comeback, ways_text
from launch.torture.errors import AskError, BrokenError
from launch.torture.questions import Question
from launch.torture.workbench import Result, Workbench

_DROPS_EACH = 8
_MOST_DROPPERS = 16
_MOST_ROUNDS = 3
_COMEBACKS_EACH = 2


async def drops(bench: Workbench) -> Result:
    """Ask all at once, a few times, while others disconnect, and once more when they are gone."""
    result = Result("clients that drop")
    if not bench.known:
        return result
    num_dropped = 0

    def count() -> None:
        nonlocal num_dropped
        num_dropped += 1

    droppers = [
        asyncio.create_task(_keep_dropping(bench, count))
        for _ in range(min(_MOST_DROPPERS, len(bench.known)))
    ]
    try:
        for _ in range(_MOST_ROUNDS):
            result.outcomes += await bench.ask_all(bench.known)
            if all(dropper.done() for dropper in droppers):
                break
    finally:
        for dropper in droppers:
            dropper.cancel()
        await asyncio.gather(*droppers, return_exceptions=True)
    result.outcomes += await bench.ask_all(bench.known)
    result.notes.append(f"{num_dropped} streams were dropped")
    return result


async def _keep_dropping(bench: Workbench, dropped: Callable[[], None]) -> None:
    """Ask questions, and disconnect at an event by chance; 0 is before the first."""
    for _ in range(_DROPS_EACH):
        question = bench.rng.choice(bench.known)
        num_events = bench.rng.randint(0, question.max_tokens)
        try:
            await _drop(bench, question, num_events)
        except AskError:
            await asyncio.sleep(0.05)
        else:
            dropped()


async def _drop(bench: Workbench, question: Question, num_events: int) -> None:
    received = Received()
    if num_events == 0:
        asking = asyncio.create_task(bench.server.ask(question))
        await asyncio.sleep(bench.rng.uniform(0, 0.02))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return
    async with aclosing(bench.server.receive(question, received)) as events:
        async for _ in events:
            num_events -= 1
            if num_events == 0:
                return


async def comebacks(bench: Workbench) -> Result:
    """Have every client disconnect at random events, and come back for the rest."""
    streams = [_leaver(bench, question) for question in bench.known]
    asked = (bench.settle(stream.question, stream.ask) for stream in streams)
    outcomes = await asyncio.gather(*asked)
    return Result("drop and come back", outcomes, [f"went on: {ways_text(streams)}"])


def _leaver(bench: Workbench, question: Question) -> Comeback:
    """Return a client that disconnects a few times."""
    most = max(1, question.max_tokens - 1)
    leaves_at = sorted({bench.rng.randint(1, most) for _ in range(_COMEBACKS_EACH)})

    def leave(comeback: Comeback) -> None:
        if leaves_at and comeback.received.num_events >= leaves_at[0]:
            del leaves_at[0]
            raise BrokenError("the client disconnected")

    return Comeback(bench.server, question, bench.rng, leave)
