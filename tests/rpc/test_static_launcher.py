"""Waiting for workers that others start, with fake ones."""

import asyncio
from pathlib import Path

import pytest

from launch.cluster.config import ClusterConfig, LauncherName
from launch.launchers.static import StaticLauncher
from quire.contract.errors import UnavailableError
from tests.fakes.fake_worker import FakeWorker

MODEL = Path(__file__).parent


def make_launcher(*workers: str, messages: list[str], timeout_s: float = 20) -> StaticLauncher:
    config = ClusterConfig(model=MODEL, launcher=LauncherName.STATIC, workers=workers)
    return StaticLauncher(config, messages.append, timeout_s)


async def test_it_waits_for_all_and_reports_which_are_missing() -> None:
    messages: list[str] = []
    async with FakeWorker() as first, FakeWorker() as probe:
        late = probe.address
        await probe.kill()
        launcher = make_launcher(first.address, late, messages=messages)
        starting = asyncio.create_task(launcher.start())
        while f"waiting for worker 1 at {late}" not in messages:
            await asyncio.sleep(0.01)
        assert not starting.done()
        async with FakeWorker(port=int(late.rpartition(":")[2])):
            await asyncio.wait_for(starting, 20)
    assert messages[0] == f"waiting for worker 0 at {first.address}, worker 1 at {late}"
    assert launcher.scheduler_values["workers"] == (first.address, late)
    assert [place.address for place in launcher.places] == [first.address, late]


async def test_a_worker_that_never_answers_is_named() -> None:
    async with FakeWorker() as good, FakeWorker() as gone:
        await gone.kill()
        launcher = make_launcher(good.address, gone.address, messages=[], timeout_s=3.0)
        with pytest.raises(UnavailableError) as caught:
            await launcher.start()
    assert f"worker 1 at {gone.address}" in caught.value.message
    assert good.address not in caught.value.message
