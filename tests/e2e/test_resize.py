"""A cell goes from one rank to more and back while it serves: no errors, and the same tokens."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from launch.cluster.servicer import Control
from quire import AsyncClient, SamplingParams
from quire.contract.errors import InvalidRequestError, ModelLoadError
from quire.contract.outputs import Delta
from tests.e2e.conftest import StartCluster

QUIRE = str(Path(sys.executable).parent / "quire")
PROMPTS = ("The list class", "Return a copy of the string", "A function definition")
NUM_STREAMS = 6
TOKENS_BEFORE = 20


def params(place: int) -> SamplingParams:
    # Of different lengths: in step, all would end at once, and none be there to move.
    return SamplingParams(
        temperature=0.8 * (place % 2), seed=place, max_tokens=400 + 30 * place, ignore_eos=True
    )


async def collect(client: AsyncClient, place: int, begun: asyncio.Event) -> list[int]:
    tokens: list[int] = []
    async for event in client.stream(PROMPTS[place % len(PROMPTS)], params(place)):
        if isinstance(event, Delta):
            tokens += event.token_ids
        if len(tokens) > TOKENS_BEFORE:
            begun.set()
    return tokens


class Load:
    """Streams one after another in several lanes, each compared with its undisturbed answer."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.over = asyncio.Event()
        self.expected: Sequence[list[int]] = ()
        self.num_compared = 0

    async def learn(self) -> None:
        places = range(NUM_STREAMS)
        self.expected = await asyncio.gather(
            *(collect(self.client, place, asyncio.Event()) for place in places)
        )

    async def _lane(self, place: int, begun: asyncio.Event) -> None:
        while not self.over.is_set():
            assert await collect(self.client, place, begun) == self.expected[place]
            self.num_compared += 1

    @asynccontextmanager
    async def running(self):  # type: ignore[no-untyped-def]
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        async with asyncio.TaskGroup() as lanes:
            for place in range(NUM_STREAMS):
                lanes.create_task(self._lane(place, begun[place]))
            await asyncio.gather(*(each.wait() for each in begun))
            yield
            self.over.set()


@pytest.mark.parametrize("sizes", [(2, 1), pytest.param((2, 4, 1), marks=pytest.mark.deep)])
async def test_a_cell_is_resized_under_load_and_no_token_changes(
    sizes: tuple[int, ...], start_cluster: StartCluster
) -> None:
    async with (
        start_cluster() as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        load = Load(client)
        await load.learn()
        async with load.running():
            for size in sizes:
                old = {place.process for place in cluster.launcher.places}
                resized = await cluster.resize(size)
                assert resized.num_moved > 0 and resized.gap_s > 0
                assert len(cluster.launcher.places) == cluster.config.tensor_parallel_size == size
                assert not old & {place.process for place in cluster.launcher.places}
        assert load.num_compared >= NUM_STREAMS
        # What is in use now is what starts again.
        for name in ("worker 0", "scheduler"):
            service = next(each for each in cluster.services if each.name == name)
            begun = asyncio.Event()
            stream = asyncio.create_task(collect(client, 0, begun))
            await begun.wait()
            service.kill()
            assert await stream == load.expected[0]


async def test_the_command_resizes_and_says_why_it_cannot(start_cluster: StartCluster) -> None:
    async with (
        start_cluster() as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        control = Control(cluster)
        address = await control.start()

        def resize(size: int) -> subprocess.CompletedProcess[str]:
            command = [QUIRE, "resize", address, "-tp", str(size)]
            return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)

        try:
            done = await asyncio.to_thread(resize, 2)
            assert done.returncode == 0, done.stderr
            for line in ("starting 2 workers", "the new workers load", "the new workers serve"):
                assert line in done.stdout
            result = r"tensor-parallel size is 2: 0 requests moved, largest gap \d+\.\d\d s\n$"
            assert re.search(result, done.stdout), done.stdout
            pids = [place.process for place in cluster.launcher.places]
            for size, reason in ((2, "another than the one in use, got 2"), (3, "3")):
                refused = await asyncio.to_thread(resize, size)
                assert refused.returncode == 1
                assert refused.stderr.startswith(f"error: {address}: ") and reason in refused.stderr
            # The old ones go on.
            assert [place.process for place in cluster.launcher.places] == pids
            params = SamplingParams(max_tokens=4, ignore_eos=True)
            answer = await client.generate(PROMPTS[0], params)
            assert len(answer.token_ids) == 4
        finally:
            await control.stop()


async def test_a_number_of_ranks_that_does_not_fit_leaves_nothing_behind(
    start_cluster: StartCluster,
) -> None:
    async with start_cluster() as cluster:
        services = list(cluster.services)
        with pytest.raises(InvalidRequestError, match="must be in"):
            await cluster.resize(0)
        others = cluster.launcher.others(3)
        cluster.launcher.others = lambda _: others  # type: ignore[method-assign]
        with pytest.raises(ModelLoadError, match="3"):
            await cluster.resize(3)
        assert cluster.services == services
        for worker in others:
            assert await worker.wait() is not None
