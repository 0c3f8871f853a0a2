"""Cells drained and processes restarted on purpose, under load: nobody should notice."""

import argparse
import asyncio
import sys
import time

from quire import AsyncClient
from tests.chaos.cluster import ChaosCluster, Kept
from tests.chaos.load import load, references, until_connected
from tests.chaos.trouble import Disturbance
from tests.chaos.verdict import judge
from tests.chaos.workload import Answer, Job, Stream, follow

# Tokens of each stream when its cell is drained.
_TOKENS_BEFORE = 100
_MOVES_CACHE_GIB = 0.5
_NUM_MOVED = 64
# Of routers: their clients have another one to go on at.
_ROUTER_OPTIONS = {"drain_timeout_s": 2.0}
_ROUTER_GRACE_S = 10.0


async def drain(scheduler: Kept) -> float:
    """Have a cell move what it has, and end; return how long that took, in seconds.

    Raises:
        RuntimeError: the command failed.
    """
    scheduler.forget()
    began = time.monotonic()
    command = [sys.executable, "-m", "launch.cli.main", "drain", scheduler.address, "--move"]
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError(f"quire drain ended with status {process.returncode}")
    await scheduler.service.wait()
    return time.monotonic() - began


async def _follow_all(client: AsyncClient, jobs: list[Job], begun: asyncio.Barrier) -> list[Stream]:
    async def one(job: Job) -> Stream:
        event = asyncio.Event()
        running = asyncio.create_task(follow(client, job, event, _TOKENS_BEFORE))
        await event.wait()
        await begun.wait()
        return await running

    return await asyncio.gather(*(one(job) for job in jobs))


async def move(arguments: argparse.Namespace) -> int:
    """Run scenario `moves`; return the number of wrong streams.

    All streams run in one cell. Then another joins, and the first is drained.
    """
    number = max(_NUM_MOVED, arguments.streams)
    jobs = [Job("sampled", copy % 4, copy) for copy in range(number)]
    options = {"kv_cache_gib": _MOVES_CACHE_GIB, "move_blocks": arguments.move_blocks}
    cluster = ChaosCluster(1, 2, 1, options, model_dir=arguments.model)
    try:
        await cluster.start()
        first, second = cluster.schedulers
        await second.stop()
        async with AsyncClient(cluster.targets) as client:
            alone = await _follow_all(client, jobs, asyncio.Barrier(number))
            begun = asyncio.Barrier(number + 1)
            running = asyncio.create_task(_follow_all(client, jobs, begun))
            await begun.wait()
            await second.start()
            await until_connected(cluster.targets[0], 2)
            drained = Disturbance("drain --move", time.monotonic())
            seconds = await drain(first)
            streams = await running
    finally:
        await cluster.stop()
    expected: dict[Job, Answer] = {
        each.job: each.answer for each in alone if each.answer is not None
    }
    num_open = sum(each.ended_at > drained.at for each in streams)
    print(f"{num_open} streams open when the cell was drained; its scheduler ended {seconds:.1f} s")
    print("after the command was given, of which about one starts Python")
    verdict = judge(streams, expected, {}, [drained])
    print("\n".join(verdict.lines))
    return verdict.num_wrong


async def roll(arguments: argparse.Namespace) -> int:
    """Run scenario `roll`; return the number of wrong streams.

    One cell after the other is drained and all its processes are replaced, then one router after
    the other, as docs/operations.md has it.
    """
    cluster = ChaosCluster(2, 2, 2, router_options=_ROUTER_OPTIONS)
    number = arguments.streams
    done: list[Disturbance] = []
    began = 0.0

    def note(kind: str, name: str) -> None:
        done.append(Disturbance(kind, time.monotonic()))
        print(f"{time.monotonic() - began:7.1f} s  {kind}: {name}", flush=True)

    async def replace_cell(cell: int) -> None:
        note("replace cell", f"cell {cell}")
        workers, scheduler = cluster.workers[cell], cluster.schedulers[cell]
        await drain(scheduler)
        await asyncio.gather(*(each.stop() for each in workers))
        await asyncio.gather(*(each.start() for each in (*workers, scheduler)))
        for target in cluster.targets:
            await until_connected(target, len(cluster.schedulers))

    async def replace_router(router: Kept) -> None:
        note("replace router", router.service.name)
        await router.stop(_ROUTER_GRACE_S)
        await router.start()
        await until_connected(router.address, len(cluster.schedulers))

    try:
        await cluster.start()
        expected, alone_s = await references(cluster.targets, number)
        over, began = asyncio.Event(), time.monotonic()
        running = asyncio.create_task(load(cluster.targets, arguments.seed, number, over))
        while not done or time.monotonic() - began < arguments.seconds:
            for cell in range(len(cluster.schedulers)):
                await replace_cell(cell)
            for router in cluster.routers:
                await replace_router(router)
        over.set()
        streams = await running
    finally:
        await cluster.stop()
    print(f"all {len(cluster.services)} processes replaced {len(done) // 4} times")
    verdict = judge(streams, expected, alone_s, done)
    print("\n".join(verdict.lines))
    return verdict.num_wrong
