"""Scenario `soak`: what a cluster keeps of requests that are given up in every state.

Ten rounds have as many requests each; beside them one client after the other stops reading, or is
stopped. The first round warms up. After the others the memory of every process is what it was
then, and in the end there are the blocks and the tasks of the beginning, and no stream.
"""

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from quire import AsyncClient, SamplingParams
from quire.contract.errors import RequestExistsError
from quire.contract.outputs import CellState
from tests.chaos.cluster import ChaosCluster
from tests.chaos.visits import SCHEDULER_OPTIONS, SHAPES, Ending, Stage, Tally, send, visits
from tests.scraping import Scrape, get

NUM_REQUESTS = 100_000
NUM_ROUNDS = 10
STALLED_READER_TIMEOUT_S = 10.0
# Until its stream has ended. One that stops reading has yet to fill what is on the way.
GONE_WITHIN_S = {"frozen reader": STALLED_READER_TIMEOUT_S + 20.0, "frozen client": 20.0}
MAX_GROWTH = 0.01
# Fewer do not warm up: growth is printed, and judges nothing.
MIN_WARM_UP = 5_000
# What a connection, a report or a heartbeat has for a moment.
TASKS_APART = 8
_POLL_S = 0.5


async def state_when_idle(target: str) -> CellState:
    """Return the state of the first cell once it has no request."""
    async with AsyncClient(target) as client:
        async for cells in client.watch_cluster():
            state = cells[0].state
            if state.num_blocks and not state.num_running + state.num_waiting:
                return state
    raise AssertionError("the watch ended")


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is resident now, in MiB (Linux)."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(fields["VmRSS"].split()[0]) / 1024


@dataclass(frozen=True, slots=True)
class Remains:
    """What there is after a round.

    Attributes:
        memory_mib: resident, by process.
        tasks: of event loops, by process.
        open_streams: at the router.
        free_blocks: of the cell's cache and of its host memory.
    """

    memory_mib: dict[str, float]
    tasks: dict[str, int]
    open_streams: int
    free_blocks: tuple[int, int]


class Frozen:
    """Clients beside the others: one reads no more, one is stopped, and both again and again.

    Attributes:
        gone_s: seconds until the router had ended their streams, by kind.
    """

    def __init__(self, target: str) -> None:
        self.gone_s: dict[str, list[float]] = {kind: [] for kind in GONE_WITHIN_S}
        self._target = target

    async def run(self, over: asyncio.Event) -> None:
        """Start them until it is over; return when the last ones are gone."""
        await asyncio.gather(*(self._repeat(kind, over) for kind in self.gone_s))

    async def _repeat(self, kind: str, over: asyncio.Event) -> None:
        async with AsyncClient(self._target) as client:
            while not over.is_set():
                request_id = f"{kind} {len(self.gone_s[kind])}"
                child = await asyncio.create_subprocess_exec(
                    *[sys.executable, "-m", "tests.chaos.frozen", self._target, request_id],
                    stdout=asyncio.subprocess.PIPE,
                )
                try:
                    assert child.stdout is not None, "started with a pipe"
                    if not await child.stdout.readline():
                        continue  # it found no router in time: the machine is busy
                    if kind == "frozen client":
                        child.send_signal(signal.SIGSTOP)
                    began_s = time.monotonic()
                    await _until_free(client, request_id)
                    self.gone_s[kind].append(time.monotonic() - began_s)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        child.kill()
                    await child.wait()


async def _until_free(client: AsyncClient, request_id: str) -> None:
    """Return when no open request has this id."""
    while True:
        try:
            await client.generate("The", SamplingParams(max_tokens=1), request_id=request_id)
        except RequestExistsError:
            await asyncio.sleep(_POLL_S)
        else:
            return


async def _remains(cluster: ChaosCluster) -> Remains:
    memory = {each.name: resident_mib(each.service.pid) for each in cluster.services}
    pages = {
        each.name: Scrape((await asyncio.to_thread(get, each.service.admin_address, "/metrics"))[1])
        for each in cluster.services
    }
    state = await state_when_idle(cluster.targets[0])
    return Remains(
        memory | {"clients": resident_mib(os.getpid())},
        {name: int(page("quire_event_loop_tasks")) for name, page in pages.items()},
        int(pages[cluster.routers[0].name]("quire_router_open_requests")),
        (state.num_free_blocks, state.num_free_host_blocks),
    )


async def run(requests: int, seed: int, num_streams: int, report: Callable[[str], None]) -> int:
    """Run the scenario and report it; return how much of it went wrong."""
    cluster = ChaosCluster(
        *(1, 1, 1),
        scheduler_options=SCHEDULER_OPTIONS,
        router_options={"stalled_reader_timeout_s": STALLED_READER_TIMEOUT_S},
    )
    try:
        await cluster.start()
        frozen, over = Frozen(cluster.targets[0]), asyncio.Event()
        rounds, tally = [await _remains(cluster)], Tally()
        freezing = asyncio.create_task(frozen.run(over))
        waiting = visits(seed, requests)
        for number in range(1, NUM_ROUNDS + 1):
            began_s, size = time.monotonic(), requests // NUM_ROUNDS
            tally.add(await send(cluster.targets, islice(waiting, size), num_streams))
            seconds = time.monotonic() - began_s
            rounds.append(await _remains(cluster))
            report(f"{number}/{NUM_ROUNDS}: {size:,} requests in {seconds:.0f} s")
        over.set()
        await freezing
        rounds.append(await _remains(cluster))
        state = await state_when_idle(cluster.targets[0])
    finally:
        await cluster.stop()
    lines, wrong = judge(rounds, tally, frozen.gone_s, state)
    for line in lines:
        report(line)
    return wrong


def judge(
    rounds: Sequence[Remains], tally: Tally, gone_s: Mapping[str, Sequence[float]], state: CellState
) -> tuple[list[str], int]:
    """Return the lines of the report, and how much of it is wrong.

    Args:
        rounds: what there was in the beginning, after each round, and when all had gone.
        tally: of the requests.
        gone_s: of the clients that froze.
        state: of the cell in the end.
    """
    first, warm, last = rounds[0], rounds[1], rounds[-1]
    is_warm = tally.ends.total() // NUM_ROUNDS >= MIN_WARM_UP
    lines = ["", "| shape | ended by | before Started | before a token | between | at the last |"]
    lines.append("|---|---|---|---|---|---|")
    for shape in SHAPES:
        for ending in Ending:
            numbers = " | ".join(f"{tally.ends[shape, ending, stage]:,}" for stage in Stage)
            lines.append(f"| {shape} | {ending} | {numbers} |")
    lines += [
        "",
        f"preemptions {state.preemptions_total:,}, blocks swapped out "
        f"{state.swapped_out_blocks_total:,}, tokens recomputed {state.recomputed_tokens_total:,}",
        "",
        "| process | MiB after 10 % | half | the end | growth | tasks before | after |",
        "|---|---|---|---|---|---|---|",
    ]
    wrong = len(tally.unexpected)
    for name, warm_mib in warm.memory_mib.items():
        growth = last.memory_mib[name] / warm_mib - 1
        half_mib = rounds[len(rounds) // 2].memory_mib[name]
        tasks = first.tasks.get(name, 0), last.tasks.get(name, 0)
        wrong += (is_warm and growth >= MAX_GROWTH) + (tasks[1] > tasks[0] + TASKS_APART)
        lines.append(
            f"| {name} | {warm_mib:.1f} | {half_mib:.1f} | {last.memory_mib[name]:.1f} | "
            f"{100 * growth:+.2f} % | {tasks[0]} | {tasks[1]} |"
        )
    lines.append("")
    for kind, seconds in gone_s.items():
        wrong += max(seconds, default=math.inf) > GONE_WITHIN_S[kind]
        span = f"{min(seconds, default=0.0):.1f} to {max(seconds, default=0.0):.1f} s"
        lines.append(f"{kind}: its stream had ended after {span}, {len(seconds)} times")
    wrong += (first.free_blocks != last.free_blocks) + last.open_streams
    lines += [
        f"free blocks, of cache and host: {first.free_blocks} before, {last.free_blocks} after; "
        f"open streams: {last.open_streams}",
        f"{len(tally.unexpected)} requests failed",
        *tally.unexpected[:5],
    ]
    return lines, wrong
