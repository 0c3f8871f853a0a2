"""Scenario `http`: the router of `quire serve` is killed under streams over HTTP, again and again.

Clients of every kind go on behind the last event that they have, some of which cut their own
connection before. What each receives in all must be what an undisturbed stream brings.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.cluster import ServedCluster, free_port
from tests.chaos.http_clients import Break, Clients, HttpStream
from tests.chaos.http_jobs import JOBS, Job, Way

# A process that dies sooner is started again after a pause that doubles.
STEADY_S = 10.0
MEAN_S = 2.0
# Of streams, whose clients cut the connection after so many events at most.
SHARE_CUT = 0.25
MOST_EVENTS = 120
_POLL_S = 0.05
# Within which half of the streams go on after a kill.
_GO_ON_S = 120.0
_ERROR_PAUSE_S = 0.5


class Load:
    """Streams of random jobs, each in a thread of its own.

    Args:
        base_url: of the API.
        number: of streams at once.
        jobs: to draw from.

    Attributes:
        streams: that have ended.
    """

    def __init__(self, base_url: str, number: int, jobs: Sequence[Job] = JOBS) -> None:
        self.number = number
        self.jobs = jobs
        self.streams: list[HttpStream] = []
        self._clients = Clients(base_url)
        self._pool = ThreadPoolExecutor(number)
        self._open: list[HttpStream] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections, once no stream runs any more."""
        self._pool.shutdown()
        self._clients.close()

    async def each(self, jobs: Iterable[Job]) -> list[HttpStream]:
        """Return what each of these jobs gives, with nothing that cuts it."""
        loop, streams = asyncio.get_running_loop(), map(HttpStream, jobs)
        works = (loop.run_in_executor(self._pool, self._clients.follow, each) for each in streams)
        return await asyncio.gather(*works)

    async def run(self, seed: int, over: threading.Event) -> None:
        """Keep so many streams running until it is over; return when all have ended."""
        loop, draws = asyncio.get_running_loop(), random.Random(seed)
        works = (
            loop.run_in_executor(self._pool, self._work, random.Random(draws.random()), over)
            for _ in range(self.number)
        )
        await asyncio.gather(*works)

    def _work(self, draw: random.Random, over: threading.Event) -> None:
        while not over.is_set():
            cut_after = draw.randint(1, MOST_EVENTS) if draw.random() < SHARE_CUT else None
            stream = HttpStream(draw.choice(self.jobs), cut_after)
            with self._lock:
                self._open.append(stream)
            self._clients.follow(stream)
            with self._lock:
                self._open.remove(stream)
                self.streams.append(stream)
            if stream.error:
                over.wait(_ERROR_PAUSE_S)

    def num_moving(self, since: float) -> int:
        """Return how many streams are open that have connected since then, and had an event."""
        with self._lock:
            return sum(each.connected_at > since for each in self._open)


async def strike(
    load: Load, seed: int, kills: int, steady_s: float, kill: Callable[[], None]
) -> None:
    """Kill so often, each time when half of the streams had gone on.

    Args:
        load: whose streams are to break.
        seed: of when it is done.
        kills: how often.
        steady_s: least time after that, in seconds.
        kill: does it.

    Raises:
        RuntimeError: half of the streams did not go on in time.
    """
    draw, killed_at = random.Random(seed), time.monotonic()
    for number in range(1, kills + 1):
        until, half = time.monotonic() + _GO_ON_S, (load.number + 1) // 2
        while (num_moving := load.num_moving(killed_at)) < half:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"streams: {half} must go on within {_GO_ON_S:g} s, got {num_moving}"
                )
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(steady_s + draw.expovariate(1 / MEAN_S))
        num_open, killed_at = load.num_moving(killed_at), time.monotonic()
        kill()
        print(f"{number}/{kills}: killed under {num_open} streams", flush=True)


async def run(
    load: Load,
    seed: int,
    kills: int,
    kill: Callable[[], None],
    steady_s: float = STEADY_S,
) -> tuple[list[str], int]:
    """Return the lines of the report, and how many streams went wrong.

    Raises:
        RuntimeError: a stream failed, though nothing was disturbed.
    """
    expected = _answers(await load.each(load.jobs))
    over = threading.Event()
    running = asyncio.create_task(load.run(seed, over))
    try:
        await strike(load, seed, kills, steady_s, kill)
    finally:
        over.set()
        await running
    # Seeds that the router drew.
    drawn = {each.seeded for each in load.streams if not each.error} - expected.keys()
    expected |= _answers(await load.each(sorted(drawn, key=repr)))
    return judge(load.streams, expected, kills)


def _answers(streams: Sequence[HttpStream]) -> dict[Job, HttpStream]:
    for each in streams:
        if each.error:
            raise RuntimeError(f"{each.job} failed undisturbed: {each.error}")
    return {each.job: each for each in streams}


def difference(stream: HttpStream, expected: HttpStream) -> str:
    """Return how a stream differs from the undisturbed one; empty if it does not."""
    if stream.error:
        return "error"
    if len(stream.ids) != 1:
        return "id"
    for index, wanted in expected.pieces.items():
        came = stream.pieces.get(index, [])
        if came == wanted:
            continue
        if len(came) != len(wanted):
            return "duplicate" if len(came) > len(wanted) else "loss"
        is_text = stream.tokens.get(index) == expected.tokens[index]
        return "text" if is_text else "tokens"
    return "" if stream.pieces.keys() == expected.pieces.keys() else "duplicate"


def judge(
    streams: Sequence[HttpStream], expected: Mapping[Job, HttpStream], kills: int
) -> tuple[list[str], int]:
    """Return the lines of the report, and how many streams went wrong."""
    wrong: Counter[str] = Counter()
    examples: list[str] = []
    for stream in streams:
        how = difference(stream, expected[stream.seeded]) if not stream.error else "error"
        if how:
            wrong[how] += 1
            examples.append(f"  {stream.job}: {how}: {stream.error[:600]}")
    breaks = [(each, stream) for stream in streams for each in stream.breaks]
    num_events = sum(each.num_pieces for each in streams)
    num_broken = sum(bool(each.breaks) for each in streams)
    lines = [
        f"{len(streams):,} streams, {num_events:,} events, {kills} kills of the router; "
        f"{len(breaks):,} times a stream broke in its midst, {num_broken:,} streams did",
        "differing from the undisturbed run: "
        + (", ".join(f"{number} by {how}" for how, number in wrong.items()) or "none"),
        *examples[:5],
        "",
        "| client | streams | broken by a kill | cut by itself | went on by | "
        "stall, s: p50 | p99 | longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in (*Way, None):
        own = [each for each, stream in breaks if way in (None, stream.job.way)]
        number = sum(way in (None, each.job.way) for each in streams)
        lines.append(f"| {way or 'all'} | {number:,} | {_row(own)} |")
    cuts = [each for each, _ in breaks if not each.is_kill]
    lines.append(f"| of them cut by themselves | | {_row(cuts)} |")
    return lines, wrong.total()


def _row(breaks: Sequence[Break]) -> str:
    num_kills = sum(each.is_kill for each in breaks)
    paths = Counter(each.path or "nothing" for each in breaks)
    by = ", ".join(f"{path} {number:,}" for path, number in sorted(paths.items()))
    stalls = sorted(each.resumed_at - each.at for each in breaks if each.resumed_at)
    chosen = [stalls[int(share * (len(stalls) - 1))] for share in (0.5, 0.99, 1.0) if stalls]
    figures = " | ".join(f"{each:.2f}" for each in chosen) or " | | "
    return f"{num_kills:,} | {len(breaks) - num_kills:,} | {by} | {figures}"


async def kill_routers(arguments: argparse.Namespace) -> int:
    """Run the scenario; return the number of wrong streams."""
    port = free_port()
    cluster = ServedCluster(
        *(1, "--port", str(port), "--reasoning-parser", "qwen3", "--log-level", "error")
    )
    kills = arguments.kills or max(1, round(arguments.seconds / (STEADY_S + MEAN_S)))

    def kill() -> None:
        for victim in cluster.victims():
            if victim.role == "router":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)

    load = Load(f"http://127.0.0.1:{port}/v1", arguments.streams)
    try:
        await cluster.start()
        print(f"undisturbed run of {len(JOBS)} requests", flush=True)
        lines, num_wrong = await run(load, arguments.seed, kills, kill)
    finally:
        load.close()
        await cluster.stop()
    print("\n".join(lines))
    return num_wrong
