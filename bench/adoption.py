"""`python -m bench.adoption`: the scheduler is killed under 64 streams, with 30,000 tokens cached.

Three times in a row. Prints for 1 and 2 ranks how many blocks the new schedulers adopted, how long
streams stood still, and how much of that was left once the new process listened. Exits with 1 if
less than 95 % were adopted, a stream stood still for longer than the target, or a token changed.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
import urllib.request
from bisect import bisect
from dataclasses import dataclass, field

from launch.cluster.process import ServiceProcess
from launch.cluster.supervisor import embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from quire.observe import log

NUM_STREAMS = 64
PROMPT_TOKENS = 420
OUTPUT_TOKENS = 160
# The scheduler dies whenever each stream has so many tokens: 30,000 are cached then, and more.
KILLED_AT = (48, 80, 112)
ADOPTED_TARGET = 0.95
STALL_TARGET_S = 0.5


@dataclass(slots=True)
class Stream:
    """What a client has received: tokens, and when each message with some of them came."""

    token_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def gap_around(self, moment: float) -> tuple[float, float]:
        """Return when the last tokens before a moment came, and the first after it."""
        place = bisect(self.times, moment)
        return self.times[place - 1], self.times[place]


@dataclass(frozen=True, slots=True)
class Kill:
    """A scheduler's death, when the next process listened, and the blocks that it adopted."""

    killed: float
    listening: float
    num_offered: int
    num_adopted: int


class Group:
    """One router, one scheduler and the workers of the embedded model."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self.scheduler = ServiceProcess("scheduler", "scheduler", {})
        self._services: list[ServiceProcess] = []

    async def _start(self, name: str, **options: object) -> ServiceProcess:
        service = ServiceProcess(name, name, {"log_level": "error", **options})
        self._services.append(service)
        await service.start(0)
        return service

    async def start(self) -> str:
        """Start everything; return the router's address."""
        workers = [
            await self._start("worker", num_threads=max(1, 2 // self._num_ranks))
            for _ in range(self._num_ranks)
        ]
        self.scheduler = await self._start(
            "scheduler",
            model=embedded_model(),
            workers=[worker.address for worker in workers],
            num_gpu_blocks_override=4096,
            max_num_seqs=NUM_STREAMS,
            admin_port=0,
        )
        router = await self._start(
            "router", model=embedded_model(), schedulers=[self.scheduler.address]
        )
        return router.address

    async def kill_scheduler(self) -> Kill:
        """Kill the scheduler and start it again."""
        listening = 0.0

        def report(word: str, _: str) -> None:
            nonlocal listening
            if word == "listening":
                listening = time.perf_counter()

        port = int(self.scheduler.address.rpartition(":")[2])
        killed = time.perf_counter()
        os.kill(self.scheduler.pid, signal.SIGKILL)
        await self.scheduler.wait()
        await self.scheduler.start(port, report)
        return Kill(killed, listening, *await self._counters())

    async def _counters(self) -> tuple[int, int]:
        """Return how many blocks the scheduler was offered, and how many it adopted."""
        url = f"http://{self.scheduler.admin_address}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        offered, adopted = (
            int(float(line.split()[1]))
            for outcome in ("offered", "adopted")
            for line in page.splitlines()
            if line.startswith(f"quire_scheduler_kv_blocks_{outcome}_total ")
        )
        return offered, adopted

    async def stop(self) -> None:
        """Stop everything, the router first."""
        for service in reversed(self._services):
            await service.stop()


async def receive(client: AsyncClient, index: int, stream: Stream) -> None:
    """Run one stream to its end."""
    prompt = random.Random(index).choices(range(10, 4000), k=PROMPT_TOKENS)
    params = SamplingParams(temperature=0.9, seed=index, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    async for event in client.stream(prompt, params):
        if isinstance(event, Delta) and event.token_ids:
            stream.token_ids += event.token_ids
            stream.times.append(time.perf_counter())


async def run(client: AsyncClient) -> list[Stream]:
    """Run all streams undisturbed."""
    streams = [Stream() for _ in range(NUM_STREAMS)]
    await asyncio.gather(*(receive(client, *each) for each in enumerate(streams)))
    return streams


async def run_with_kills(client: AsyncClient, group: Group) -> tuple[list[Stream], list[Kill]]:
    """Run all streams, and kill the scheduler in their midst."""
    streams, kills = [Stream() for _ in range(NUM_STREAMS)], []
    async with asyncio.TaskGroup() as tasks:
        for index, stream in enumerate(streams):
            tasks.create_task(receive(client, index, stream))
        for num_tokens in KILLED_AT:
            while min(len(stream.token_ids) for stream in streams) < num_tokens:
                await asyncio.sleep(0.001)
            kills.append(await group.kill_scheduler())
    return streams, kills


def percentiles(seconds: list[float]) -> str:
    """Return the median, the 99th percentile and the maximum, in milliseconds."""
    p99 = statistics.quantiles(seconds, n=100)[98]
    figures = (statistics.median(seconds), p99, max(seconds))
    return "p50 {:.0f}, p99 {:.0f}, max {:.0f} ms".format(*(1e3 * each for each in figures))


async def measure(num_ranks: int) -> list[str]:
    """Print the figures of one group; return what missed its target."""
    group = Group(num_ranks)
    try:
        async with AsyncClient(await group.start()) as client:
            streams, kills = await run_with_kills(client, group)
            expected = await run(client)
    finally:
        await group.stop()
    gaps = [(kill, *stream.gap_around(kill.listening)) for kill in kills for stream in streams]
    stalls = [after - before for _, before, after in gaps]
    beyond = [after - kill.listening for kill, _, after in gaps]
    starts = statistics.mean(kill.listening - kill.killed for kill in kills)
    num_offered = sum(kill.num_offered for kill in kills)
    num_adopted = sum(kill.num_adopted for kill in kills)
    tokens = [(one.token_ids, two.token_ids) for one, two in zip(streams, expected, strict=True)]
    num_equal = sum(one == two for one, two in tokens)
    share = num_adopted / num_offered
    print(f"{num_ranks} ranks, {NUM_STREAMS} streams, scheduler killed {len(kills)} times:")
    print(f"  blocks adopted             {num_adopted} of {num_offered}, {100 * share:.1f} %")
    print(f"  stall                      {percentiles(stalls)}")
    print(f"  the process started in     {1e3 * starts:.0f} ms")
    print(f"  stall beyond that          {percentiles(beyond)}")
    print(f"  streams with equal tokens  {num_equal} of {NUM_STREAMS}")
    missed = []
    if share < ADOPTED_TARGET:
        missed.append(f"{num_ranks} ranks: {100 * share:.1f} % of the blocks adopted")
    if statistics.quantiles(beyond, n=100)[98] > STALL_TARGET_S:
        missed.append(f"{num_ranks} ranks: stall above {STALL_TARGET_S:g} s")
    if num_equal < NUM_STREAMS:
        missed.append(f"{num_ranks} ranks: tokens changed in {NUM_STREAMS - num_equal} streams")
    return missed


def main() -> int:
    """Measure; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    log.configure("bench", "error")
    missed = [line for ranks in parser.parse_args().ranks for line in asyncio.run(measure(ranks))]
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
