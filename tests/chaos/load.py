"""Streams of random jobs, undisturbed or not, through the stock client."""

import asyncio
import random

from quire import AsyncClient
from tests.chaos.workload import JOBS, Answer, Job, Stream, follow


async def references(
    targets: list[str], num_streams: int
) -> tuple[dict[Job, Answer], dict[Job, float]]:
    """Return what every job gives when nothing is disturbed, and how long it took beside others.

    Raises:
        RuntimeError: one failed, though nothing was disturbed.
    """
    waiting = iter(JOBS)
    streams: list[Stream] = []
    async with AsyncClient(targets) as client:

        async def work() -> None:
            for job in waiting:
                streams.append(await follow(client, job))

        await asyncio.gather(*(work() for _ in range(num_streams)))
    answers = {}
    for stream in streams:
        if stream.answer is None:
            raise RuntimeError(f"{stream.job} failed undisturbed: {stream.error}")
        answers[stream.job] = stream.answer
    return answers, {each.job: each.ended_at - each.began_at for each in streams}


async def load(
    targets: list[str], seed: int, num_streams: int, over: asyncio.Event
) -> list[Stream]:
    """Keep so many streams of random jobs running until it is over; return them when all end."""
    draw = random.Random(seed)
    streams: list[Stream] = []
    async with AsyncClient(targets) as client:

        async def work() -> None:
            while not over.is_set():
                streams.append(await follow(client, draw.choice(JOBS)))

        await asyncio.gather(*(work() for _ in range(num_streams)))
    return streams
