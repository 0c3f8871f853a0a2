"""Streams of random jobs, undisturbed or not, through the stock client."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

from quire import AsyncClient
from tests.chaos.workload import JOBS, Answer, Job, Stream, follow


async def until_connected(target: str, number: int, **access: Any) -> None:
    """Return when a router has so many cells that take requests.

    Args:
        target: address of the router.
        number: of cells.
        access: further arguments of the client.
    """
    async with AsyncClient(target, **access) as client, aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if sum(each.connected and each.state.takes_requests for each in cells) == number:
                return


async def references(
    targets: list[str], num_streams: int, **access: Any
) -> tuple[dict[Job, Answer], dict[Job, float]]:
    """Return what every job gives when nothing is disturbed, and how long it took beside others.

    Args:
        targets: addresses of the routers.
        num_streams: at once.
        access: further arguments of the client.

    Raises:
        RuntimeError: one failed, though nothing was disturbed.
    """
    waiting = iter(JOBS)
    streams: list[Stream] = []
    async with AsyncClient(targets, **access) as client:

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
    targets: list[str], seed: int, num_streams: int, over: asyncio.Event, **access: Any
) -> list[Stream]:
    """Keep so many streams of random jobs running until it is over; return them when all end."""
    draw = random.Random(seed)
    streams: list[Stream] = []
    async with AsyncClient(targets, **access) as client:

        async def work() -> None:
            while not over.is_set():
                streams.append(await follow(client, draw.choice(JOBS)))

        await asyncio.gather(*(work() for _ in range(num_streams)))
    return streams
