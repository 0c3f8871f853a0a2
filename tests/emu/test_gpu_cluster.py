"""A whole cluster whose worker computes on a GPU: the CPU's tokens, through kills, swaps and moves.

The services are processes of their own, as everywhere; on an emulated GPU the worker's begins in
tests.emu.entry.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu_cluster
from bench.cell_processes import Cells
from launch.cluster.process import ServiceProcess
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.admin_ports import scrape
from tests.e2e.conftest import running_cluster
from tests.e2e.served_model import save_served_model
from tests.e2e.test_block_moves import scrape as scrape_address
from tests.e2e.test_cells import until_connected
from tests.emu.conftest import IS_EMULATED
from worker_svc.parallel.peer_sums import SETTING

PARAMS = [
    SamplingParams(temperature=0.0, seed=0, max_tokens=96, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=1, max_tokens=96, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=2, n=2, max_tokens=96, ignore_eos=True),
    SamplingParams(
        temperature=1.0, seed=3, top_p=0.9, repetition_penalty=1.2, max_tokens=96, ignore_eos=True
    ),
]
TOKENS_BEFORE = 8
# Keys and values of 3 layers, 2 heads of 16, 16 positions, in float32.
GIB_OF_BLOCK = 2 * 3 * 2 * 16 * 16 * 4 / 2**30
MAX_MODEL_LEN = 128
ON_GPU: dict[str, Any] = {"device": "cuda", "invariant": True}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_model_len": MAX_MODEL_LEN,
    # An emulated GPU is slow to run the largest step and to capture its graphs.
    "max_num_batched_tokens": 128,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, beside a worker that finds a GPU."""
    if IS_EMULATED:
        monkeypatch.setattr(ServiceProcess, "module", "tests.emu.entry")
    return save_served_model(tmp_path, "llama")


def prompt(place: int) -> list[int]:
    return list(range(5 + 40 * place, 25 + 40 * place))


async def collect(
    client: AsyncClient, place: int, begun: asyncio.Event | None = None
) -> dict[int, list[int]]:
    """Return the tokens of each output; set the event when some have come."""
    tokens: dict[int, list[int]] = {}
    async for event in client.stream(prompt(place), PARAMS[place]):
        if isinstance(event, Delta):
            tokens.setdefault(event.index, []).extend(event.token_ids)
        if begun is not None and sum(map(len, tokens.values())) >= TOKENS_BEFORE:
            begun.set()
    return tokens


async def collect_all(client: AsyncClient) -> list[dict[int, list[int]]]:
    return await asyncio.gather(*(collect(client, place) for place in range(len(PARAMS))))


async def begin_all(client: AsyncClient) -> list[asyncio.Task[dict[int, list[int]]]]:
    """Return streams that have come to their first tokens."""
    begun = [asyncio.Event() for _ in PARAMS]
    streams = [
        asyncio.create_task(collect(client, place, begun[place])) for place in range(len(PARAMS))
    ]
    await asyncio.gather(*(each.wait() for each in begun))
    return streams


async def answers(model: Path) -> list[dict[int, list[int]]]:
    """What the prompts get of a cluster that nothing disturbs: a CPU's, or a real GPU's own."""
    device = {"device": "cpu"} if IS_EMULATED else ON_GPU
    async with (
        running_cluster(model, **OPTIONS, **device) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        return await collect_all(client)


async def test_the_tokens_of_a_cpu_through_kills_too(model: Path) -> None:
    expected = await answers(model)
    async with (
        running_cluster(model, **ON_GPU, **OPTIONS) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await collect_all(client) == expected
        for name in ("worker 0", "scheduler"):
            streams = await begin_all(client)
            service = next(each for each in cluster.services if each.name == name)
            killed = service.pid
            service.kill()
            assert not all(each.done() for each in streams)
            assert await asyncio.gather(*streams) == expected
            assert service.pid != killed


async def test_blocks_that_are_swapped_change_no_token(model: Path) -> None:
    expected = await answers(model)
    options = {"kv_cache_gib": 16.5 * GIB_OF_BLOCK, "preemption_mode": "swap", "admin_port": 0}
    async with (
        running_cluster(model, **ON_GPU, **OPTIONS, **options) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await collect_all(client) == expected
        assert 'device="cuda:0"' in (await scrape(cluster, "worker 0")).text
        counted = await scrape(cluster, "scheduler")
        for direction in ("in", "out"):
            assert counted("quire_scheduler_swapped_blocks_total", direction=direction) > 0


@pytest.mark.skipif(
    not IS_EMULATED and torch.cuda.device_count() < 2, reason="there is one GPU, not two"
)
@pytest.mark.parametrize("peer_sums", ["1", "0"], ids=["peer memory", "nccl"])
async def test_ranks_on_two_gpus(
    model: Path,
    peer_sums: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Exchanges of a rank that dies fail on the other, and both meet again."""
    expected = await answers(model)
    monkeypatch.setenv(SETTING, peer_sums)
    async with (
        running_cluster(
            model, **ON_GPU, **OPTIONS, tensor_parallel_size=2, log_level="info"
        ) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        assert await collect_all(client) == expected
        for name in ("worker 1", "worker 0"):
            streams = await begin_all(client)
            service = next(each for each in cluster.services if each.name == name)
            killed = service.pid
            service.kill()
            assert not all(each.done() for each in streams)
            assert await asyncio.gather(*streams) == expected
            assert service.pid != killed
    logs = [json.loads(each) for each in capfd.readouterr().err.splitlines() if each[:1] == "{"]
    meetings = [each["library"] for each in logs if each["event"] == "sums_of_ranks"]
    library = "peer_memory" if peer_sums == "1" else "nccl"
    if IS_EMULATED or library == "nccl":  # not all GPUs reach each other
        assert len(meetings) >= 6
        assert {*meetings} == {library}


async def test_a_cell_that_is_drained_sends_its_blocks_to_another(model: Path) -> None:
    expected = await answers(model)
    options = {**OPTIONS, "kv_cache_gib": 0.01, "invariant": True, "move_blocks": "always"}
    async with Cells(
        {"model": model, "admin_port": 0, **options}, {"device": "cuda", "admin_port": 0}
    ) as cells:
        first, second = await cells.start_cells(2)
        router = await cells.start_router([first.address, second.address], model=model)
        async with AsyncClient(router) as client:
            await until_connected(client, 2)
            streams = await begin_all(client)
            async with open_channel(first.address) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                request = scheduler_pb2.DrainRequest(move=True)
                last = [each async for each in stub.Drain(request, timeout=300)][-1]
            assert (last.num_moved > 0, last.num_unfinished) == (True, 0)
            assert await asyncio.gather(*streams) == expected
        moved = await scrape_address(second.scheduler.admin_address)
        assert moved("quire_scheduler_moved_blocks_total", outcome="fetched") > 0


async def test_the_benchmark(model: Path) -> None:
    (result,) = await gpu_cluster.measure(
        model, [[prompt(0), prompt(1)]], num_tokens=6, kv_cache_gib=0.01, **ON_GPU, **OPTIONS
    )
    assert result.streams == 2
    assert min(result.tokens_per_s, result.first_token_ms) > 0
