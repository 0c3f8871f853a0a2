"""`make bench-scale`: what one more token, request, router or cell costs, in CPU time and bytes.

The units that docs/scale.md multiplies. CPU times are of processes, so that others on the machine
disturb them little; through sockets on this machine.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import grpc

from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState, Delta
from quire.observe import log
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.wire.common import cell_state_from_proto, cell_state_to_proto
from router.cells.choice import CellChoice, ReportedLoad, RoutingPolicy

NUM_CELLS = 1000
KEYS_PER_CELL = 1500
BLOCK_SIZE = 32
NUM_MESSAGES = 20_000
NUM_STREAMS = 48
TOKENS_EACH = 150
# As of a cell that has run for a day.
STATE = CellState(
    epoch=1_800_000_000_000,
    num_waiting=3,
    num_running=100,
    block_size=32,
    num_blocks=10_354,
    num_free_blocks=5_000,
    steps_total=3_000_000,
    tokens_total=300_000_000,
    step_bytes_total=10**9,
    schedule_us_total=10**9,
    wire_us_total=10**9,
    model_us_total=8 * 10**10,
    sample_us_total=10**9,
    prefix_cache_queries_total=10**10,
    prefix_cache_hits_total=8 * 10**9,
    num_idle_slots=1600,
    outstanding_tokens=9_000,
)


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_placement() -> None:
    """Print what a router's choice among many cells takes, and its memory."""
    rng = random.Random(0)
    choice = CellChoice[int](RoutingPolicy.PREFIX_AWARE, rng)
    before, began = resident_bytes(), time.process_time()
    for cell in range(NUM_CELLS):
        choice.join(cell, BLOCK_SIZE)
        choice.update_digest(cell, [rng.getrandbits(64) for _ in range(KEYS_PER_CELL)], ())
        choice.report(cell, ReportedLoad(rng.randrange(10_000), 5_000))
    num_keys = NUM_CELLS * KEYS_PER_CELL
    bytes_each = (resident_bytes() - before) / num_keys
    print(f"digest of {num_keys:,} blocks in a router: {bytes_each:.0f} bytes each")
    print(f"  {1e6 * (time.process_time() - began) / num_keys:8.2f} us to take one in")
    prompts = [[rng.randrange(250) for _ in range(1500)] for _ in range(200)]
    began = time.process_time()
    for prompt in prompts * 5:
        assignment = choice.place(prompt, b"")
        assert assignment is not None
    placed_us = 1e6 * (time.process_time() - began) / (5 * len(prompts))
    print(f"  {placed_us:8.0f} us to place a prompt of 1,500 tokens on one of {NUM_CELLS:,} cells")
    began = time.process_time()
    for cell in range(NUM_CELLS):
        choice.report(cell, ReportedLoad(1, 1))
    print(f"  {1e6 * (time.process_time() - began) / NUM_CELLS:8.2f} us to take in a load\n")


async def _heartbeats(
    request_iterator: AsyncIterator[bytes], context: grpc.aio.ServicerContext
) -> AsyncIterator[scheduler_pb2.SessionResponse]:
    """Say again and again how a cell is, as a scheduler's Session does."""
    for _ in range(NUM_MESSAGES):
        yield scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(STATE))


def _report(pipe: Connection) -> None:
    """Serve heartbeats until asked to stop; then send the CPU time they took."""

    async def serve() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            _heartbeats,
            response_serializer=scheduler_pb2.SessionResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "quire.v1.SchedulerService", {"Session": handler}
                ),
            )
        )
        pipe.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        began = time.process_time()
        await asyncio.to_thread(pipe.recv)
        pipe.send(time.process_time() - began)
        await server.stop(0)

    asyncio.run(serve())


async def _listen(port: int) -> float:
    """Read all heartbeats; return the CPU time it took."""
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = cast(
            "scheduler_pb2_grpc.SchedulerServiceAsyncStub",
            scheduler_pb2_grpc.SchedulerServiceStub(channel),
        )
        call = stub.Session()
        began, received = time.process_time(), 0
        while (message := await call.read()) is not grpc.aio.EOF:
            received += cell_state_from_proto(message.cell_state) == STATE
        assert received == NUM_MESSAGES
        call.cancel()
        return time.process_time() - began


def measure_heartbeats() -> None:
    """Print what a small message on a session costs both ends."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_report, args=(there,))
    process.start()
    try:
        read_s = asyncio.run(_listen(here.recv()))
        here.send("stop")
        sent_s = here.recv()
    finally:
        process.join(timeout=10)
        if process.is_alive():
            process.kill()
    size = scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(STATE)).ByteSize()
    print(f"a heartbeat, {size} bytes, on a session")
    print(f"  {1e6 * read_s / NUM_MESSAGES:8.0f} us of the router's CPU to receive")
    print(f"  {1e6 * sent_s / NUM_MESSAGES:8.0f} us of the scheduler's CPU to send\n")


async def measure_tokens() -> None:
    """Print what a token and a request cost router and scheduler of a real cluster."""
    cluster = Cluster(ClusterConfig(model=embedded_model(), port=None, grpc_port=0, device="cpu"))
    await cluster.start()
    os.nice(10)
    pids = {
        service.name: service.pid
        for service in cluster.services
        if not service.name.startswith("worker")
    }
    try:
        async with AsyncClient(cluster.router.address) as client:

            async def ask(index: int, max_tokens: int) -> int:
                params = SamplingParams(seed=index, max_tokens=max_tokens, ignore_eos=True)
                received = 0
                async for event in client.stream([10, index, *[7] * 30], params):
                    if isinstance(event, Delta):
                        received += len(event.token_ids)
                return received

            async def run(count: int, max_tokens: int) -> tuple[dict[str, float], int]:
                before = {name: cpu_s_of(pid) for name, pid in pids.items()}
                received = sum(await asyncio.gather(*(ask(i, max_tokens) for i in range(count))))
                spent = {name: cpu_s_of(pid) - before[name] for name, pid in pids.items()}
                return spent, received

            await run(8, 8)
            # What a request costs beside its tokens: many requests of one token each.
            num_short = 600
            short, _ = await run(num_short, 1)
            spent, received = await run(NUM_STREAMS, TOKENS_EACH)
    finally:
        await cluster.stop()
    print(f"{NUM_STREAMS} streams of {TOKENS_EACH} tokens, and {num_short} requests of one")
    for name, seconds in spent.items():
        request_us = 1e6 * short[name] / num_short
        token_us = (1e6 * seconds - NUM_STREAMS * request_us) / received
        print(
            f"  {name:<10} {token_us:8.0f} us of CPU for a token, {request_us:6.0f} for a request"
        )


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    log.configure("bench", "warning")
    measure_placement()
    measure_heartbeats()
    asyncio.run(measure_tokens())


if __name__ == "__main__":
    main()
