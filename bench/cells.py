"""`make bench-cells`: three cells and two routers under questions about shared documents.

Each cell's cache holds about half of the documents, so that what is found in it depends on where
requests go. Policies take turns, on the same cells, each time with new documents, so that every run
begins without them. At the end, one cell is drained while requests run.
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.cell_processes import CellProcesses, Cells
from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuireError
from quire.contract.outputs import CellState, Delta
from quire.observe import log
from router.cells.choice import RoutingPolicy

NUM_CELLS = 3
NUM_ROUTERS = 2
NUM_DOCUMENTS = 12
DOCUMENT_TOKENS = 400
QUESTION_TOKENS = 16
OUTPUT_TOKENS = 16
NUM_BLOCKS = 192
VOCABULARY = range(10, 4000)
PARAMS = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
POLICIES = (RoutingPolicy.PREFIX_AWARE, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED)


@dataclass(slots=True)
class Load:
    """Questions that clients ask, and what came of them.

    Attributes:
        seconds: from the first question to the last answer.
        first_token_s: of each answer.
        errors: messages of those that failed.
        hit_rate: share of prompt tokens that were in a cache.
    """

    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    hit_rate: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Answers over time."""
        return len(self.first_token_s) / self.seconds

    def first_token_ms(self, percent: int) -> float:
        """Return a percentile of the time to the first token."""
        return 1e3 * statistics.quantiles(self.first_token_s, n=100)[percent - 1]


def questions(order: int, run: int, number: int) -> Iterator[list[int]]:
    """Yield prompts: a document, the first ones more often (Zipf), and a question about it.

    Args:
        order: seed of the order of documents, the same for every policy.
        run: seed of what they say, another one for each run.
        number: of prompts.
    """
    rng = random.Random(run)
    documents = [rng.choices(VOCABULARY, k=DOCUMENT_TOKENS) for _ in range(NUM_DOCUMENTS)]
    weights = [1 / rank for rank in range(1, NUM_DOCUMENTS + 1)]
    for document in random.Random(order).choices(documents, weights, k=number):
        yield document + rng.choices(VOCABULARY, k=QUESTION_TOKENS)


async def ask(client: AsyncClient, prompts: Iterator[list[int]], load: Load) -> None:
    """Ask one question after the other."""
    for prompt in prompts:
        started, first, num_tokens = time.perf_counter(), 0.0, 0
        try:
            async for event in client.stream(prompt, PARAMS):
                if isinstance(event, Delta) and event.token_ids:
                    first = first or time.perf_counter() - started
                    num_tokens += len(event.token_ids)
        except QuireError as error:
            load.errors.append(error.message)
            continue
        if num_tokens == OUTPUT_TOKENS:
            load.first_token_s.append(first)
        else:
            load.errors.append(f"{num_tokens} tokens instead of {OUTPUT_TOKENS}")


async def totals(client: AsyncClient) -> tuple[int, int]:
    """Return tokens looked up and found in all cells, once these are idle."""
    # Reports come at least once a second: later, what a router knows is of now.
    await asyncio.sleep(1.2)
    async for cells in client.watch_cluster():
        states: list[CellState] = [cell.state for cell in cells]
        if not any(state.num_running + state.num_waiting for state in states):
            looked_up = sum(state.prefix_cache_queries_total for state in states)
            return looked_up, sum(state.prefix_cache_hits_total for state in states)
    raise AssertionError("the watch goes on")


async def run_load(
    clients: list[AsyncClient], num_users: int, prompts: Iterator[list[int]], load: Load
) -> None:
    """Let users ask through all routers, each the next question once it has its answer.

    Mutates: load, as answers arrive.
    """
    started = time.perf_counter()
    users = zip(range(num_users), itertools.cycle(clients), strict=False)
    await asyncio.gather(*(ask(client, prompts, load) for _, client in users))
    load.seconds = time.perf_counter() - started


async def measure(clients: list[AsyncClient], num_users: int, prompts: Iterator[list[int]]) -> Load:
    """Return a run, with its share of cached tokens."""
    load = Load()
    looked_up, found = await totals(clients[0])
    await run_load(clients, num_users, prompts, load)
    looked_up_later, found_later = await totals(clients[0])
    load.hit_rate = (found_later - found) / max(1, looked_up_later - looked_up)
    return load


async def drain_in_mid_run(
    cells: Cells,
    cell: CellProcesses,
    clients: list[AsyncClient],
    num_users: int,
    num_requests: int,
) -> tuple[Load, int]:
    """Return a run in which a cell is drained after a third of the answers, and what was left."""
    load = Load()
    prompts = questions(0, 10**6, num_requests)
    running = asyncio.create_task(run_load(clients, num_users, prompts, load))
    while len(load.first_token_s) < num_requests // 3 and not running.done():
        await asyncio.sleep(0.01)
    left = num_requests - len(load.first_token_s)
    status = await cells.drain(cell)
    if status:
        load.errors.append(f"the drained scheduler ended with status {status}")
    await running
    return load, left


def report(loads: dict[RoutingPolicy, list[Load]]) -> None:
    """Print medians over the repetitions, policies side by side."""
    rows = {
        "prefix hit rate, %": lambda load: 100 * load.hit_rate,
        "requests/s": lambda load: load.requests_per_s,
        "TTFT p50, ms": lambda load: load.first_token_ms(50),
        "TTFT p95, ms": lambda load: load.first_token_ms(95),
    }
    print(f"  {'':20}" + "".join(f"{policy:>14}" for policy in loads))
    for name, value in rows.items():
        medians = [statistics.median(map(value, runs)) for runs in loads.values()]
        print(f"  {name:20}" + "".join(f"{median:14.1f}" for median in medians))


async def bench(num_users: int, num_requests: int, repetitions: int) -> int:
    """Run everything; return 1 if any request failed."""
    async with Cells({"num_gpu_blocks_override": NUM_BLOCKS}, {"num_threads": 1}) as cells:
        started = await cells.start_cells(NUM_CELLS)
        addresses = [cell.address for cell in started]
        clients = {
            policy: [
                AsyncClient(await cells.start_router(addresses, routing_policy=policy))
                for _ in range(NUM_ROUTERS)
            ]
            for policy in POLICIES
        }
        # Users have machines of their own; here they should not take the cells' cores.
        os.nice(10)
        print(
            f"{NUM_CELLS} cells of {NUM_BLOCKS} blocks of 16, {NUM_ROUTERS} routers, {num_users} "
            f"users, {NUM_DOCUMENTS} documents of {DOCUMENT_TOKENS} tokens (Zipf), {num_requests} "
            f"questions; medians of {repetitions}"
        )
        loads: dict[RoutingPolicy, list[Load]] = {policy: [] for policy in POLICIES}
        runs = itertools.count()
        for repetition in range(repetitions):
            # Each policy goes first once.
            shift = repetition % len(POLICIES)
            for policy in POLICIES[shift:] + POLICIES[:shift]:
                prompts = questions(repetition, next(runs), num_requests)
                loads[policy].append(await measure(clients[policy], num_users, prompts))
        report(loads)
        measured = itertools.chain.from_iterable(loads.values())
        errors = [error for load in measured for error in load.errors]
        drained, left = await drain_in_mid_run(
            cells, started[0], clients[RoutingPolicy.PREFIX_AWARE], num_users, num_requests
        )
        errors += drained.errors
        print(
            f"One cell drained in mid-run, with {left} of {num_requests} answers to come: "
            f"{len(drained.errors)} errors, {drained.requests_per_s:.1f} requests/s"
        )
        for each in itertools.chain.from_iterable(clients.values()):
            await each.close()
    for error in errors[:10]:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    sys.exit(asyncio.run(bench(arguments.users, arguments.requests, arguments.repetitions)))
