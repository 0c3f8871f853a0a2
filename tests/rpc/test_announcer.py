"""The worker's side of an announcement, against a real scheduler."""

import asyncio

import pytest
from structlog.testing import capture_logs

from quire.contract import sessions
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.server import SchedulerServer
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import running_scheduler
from worker_svc.config import WorkerConfig
from worker_svc.device.open import open_device
from worker_svc.service.announcer import Announcer
from worker_svc.service.server import WorkerServer


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_svc.service.announcer.INTERVAL_S", 0.05)
    monkeypatch.setattr("worker_svc.service.announcer.RETRY_INTERVAL_S", 0.05)


def make_config(port: int) -> SchedulerConfig:
    return SchedulerConfig(model="/m", served_model_name="m", tensor_parallel_size=1, port=port)


async def test_a_restarted_scheduler_gets_a_new_announcement() -> None:
    async with FakeWorker() as worker:
        scheduler = SchedulerServer(make_config(port=0))
        address = await scheduler.start()
        announcer = Announcer(address, 0, worker.address)
        try:
            await asyncio.wait_for(scheduler.wait_until_serving(), 20)
            await scheduler.stop()
            scheduler = SchedulerServer(make_config(int(address.rpartition(":")[2])))
            await scheduler.start()
            await asyncio.wait_for(scheduler.wait_until_serving(), 20)
            assert len(worker.load_requests) == 2
        finally:
            await announcer.stop()
            await scheduler.stop()


async def test_a_refusal_is_logged_once_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async with running_scheduler(wait=False, tensor_parallel_size=1) as (scheduler, address):
        announce, enough = scheduler._driver.workers.roster.announce, asyncio.Event()

        async def count(announcement: sessions.Announcement) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                enough.set()
            await announce(announcement)

        monkeypatch.setattr(scheduler._driver.workers.roster, "announce", count)
        with capture_logs() as lines:
            announcer = Announcer(address, 5, "127.0.0.1:9")
            await asyncio.wait_for(enough.wait(), 20)
            await announcer.stop()
    failures = [line for line in lines if line["event"] == "announcement_failed"]
    assert len(failures) == 1
    assert failures[0]["log_level"] == "warning"
    assert "INVALID_ARGUMENT" in failures[0]["error"]
    assert "got 5" in failures[0]["error"]


async def test_an_absent_scheduler_is_logged_once_and_gets_the_announcement_when_it_comes() -> None:
    async with FakeWorker() as worker:
        scheduler = SchedulerServer(make_config(port=0))
        address = await scheduler.start()
        await scheduler.stop()
        with capture_logs() as lines:
            announcer = Announcer(address, 0, worker.address)
            while not lines:
                await asyncio.sleep(0.01)
            scheduler = SchedulerServer(make_config(int(address.rpartition(":")[2])))
            await scheduler.start()
            try:
                await asyncio.wait_for(scheduler.wait_until_serving(), 20)
            finally:
                await announcer.stop()
                await scheduler.stop()
    logged = [line for line in lines if line["event"].startswith("announce")]
    assert [line["event"] for line in logged[:2]] == ["announcement_failed", "announced"]
    assert logged[0]["error"] == "unreachable"


async def test_a_worker_announces_the_host_of_its_config_and_its_own_port() -> None:
    async with running_scheduler(wait=False, tensor_parallel_size=2) as (
        scheduler,
        address,
    ):
        config = WorkerConfig(port=0, announce_to=address, rank=1, advertise_host="localhost")
        worker = WorkerServer(config, open_device("cpu"))
        try:
            port = (await worker.start()).rpartition(":")[2]
            roster = scheduler._driver.workers.roster
            while not roster._addresses:
                await asyncio.sleep(0.01)
            assert roster._addresses == {1: f"localhost:{port}"}
        finally:
            await worker.stop()
