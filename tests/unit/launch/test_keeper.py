"""What becomes of a child of `quire serve` that ends or hangs."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from launch.cluster.keeper import CONFIG_ERRORS_IN_A_ROW, MISSED_CHECKS, Patience, keep
from launch.cluster.process import ServiceProcess
from quire.contract.errors import ConfigError, QuireError, UnavailableError

# Ended the moment it was started; no delay but that the loop turns.
QUICK = Patience(first_delay_s=0.0, hang_timeout_s=0.0, start_timeout_s=0.0)


class FakeChild(ServiceProcess):
    """A child whose starts, end and health checks the test decides."""

    def __init__(self, start: Callable[[int], QuireError | None] = lambda _: None) -> None:
        """Describe one that is up.

        Args:
            start: returns the error of a start, by its number from 1.
        """
        super().__init__("worker 0", "worker", {})
        self.address = "127.0.0.1:4711"
        self.ports: list[int] = []
        self.num_kills = 0
        self.num_prepared = 0
        self.healthy = True
        self._start = start
        self._ended = asyncio.Event()
        self._started = asyncio.Condition()

    async def start(self, port: int, report: Callable[[str, str], None] = lambda *_: None) -> str:
        self.ports.append(port)
        async with self._started:
            self._started.notify_all()
        if error := self._start(len(self.ports)):
            raise error
        self._ended.clear()
        return self.address

    async def prepare(self) -> None:
        self.num_prepared += 1
        self.end()

    async def wait(self) -> int:
        await self._ended.wait()
        return 1

    async def answers(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        return self.healthy

    def kill(self) -> None:
        self.num_kills += 1
        self.healthy = True
        self._ended.set()

    def end(self) -> None:
        self._ended.set()

    async def started(self, count: int) -> None:
        async with asyncio.timeout(20), self._started:
            await self._started.wait_for(lambda: len(self.ports) >= count)


async def kept(child: FakeChild, num_starts: int, patience: Patience = QUICK) -> None:
    """Keep a child until it has been started so often."""
    keeper = asyncio.create_task(keep(child, patience))
    starting = asyncio.create_task(child.started(num_starts))
    await asyncio.wait({keeper, starting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        assert not keeper.done(), keeper.exception()
        await starting
    finally:
        keeper.cancel()
        starting.cancel()
        await asyncio.gather(keeper, starting, return_exceptions=True)


async def test_the_successor_of_a_steady_child_is_held_ready() -> None:
    child = FakeChild()
    # It ends when its successor is ready; each start makes ready another one.
    await kept(child, 3, replace(QUICK, steady_s=0.0, hang_timeout_s=60.0))
    assert child.num_prepared >= 3
    child = FakeChild()
    child.end()
    await kept(child, 1)
    assert child.num_prepared == 0


async def test_a_child_that_dies_quickly_is_started_for_ever() -> None:
    child = FakeChild(lambda _: UnavailableError("worker 0 ended with status 1"))
    child.end()
    await kept(child, 30)
    assert set(child.ports) == {4711}


async def test_delays_double_up_to_a_limit_and_begin_anew_after_a_long_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = FakeChild(lambda _: UnavailableError("again"))
    child.end()
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(delay_s: float) -> None:
        if delay_s:
            delays.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", record)
    slow = replace(QUICK, first_delay_s=1.0, longest_delay_s=6.0)
    await kept(child, 6, slow)
    assert delays[:6] == [1, 2, 4, 6, 6, 6]
    delays.clear()
    child.ports.clear()
    await kept(child, 3, replace(slow, steady_s=-1.0))
    assert delays[:3] == [1, 1, 1]


async def test_a_configuration_that_stays_unusable_ends_the_cluster_with_the_reason() -> None:
    child = FakeChild(lambda _: ConfigError("model: must be a directory"))
    child.end()
    with pytest.raises(ConfigError, match="model: must be a directory"):
        await asyncio.wait_for(keep(child, QUICK), 20)
    assert len(child.ports) == CONFIG_ERRORS_IN_A_ROW


async def test_a_configuration_that_is_unusable_for_a_moment_does_not() -> None:
    error = ConfigError("tls_dir: must have a tls.key")
    child = FakeChild(lambda n: error if n % CONFIG_ERRORS_IN_A_ROW else UnavailableError("other"))
    child.end()
    await kept(child, 5 * CONFIG_ERRORS_IN_A_ROW)


async def test_a_child_that_hangs_is_replaced() -> None:
    child = FakeChild()
    child.healthy = False
    await kept(child, 1)
    assert child.num_kills == 1


async def test_one_missed_check_is_none() -> None:
    child = FakeChild()
    answers = iter([False] * (MISSED_CHECKS - 1) + [True] + [False] * (MISSED_CHECKS - 1))
    asked_all = asyncio.Event()

    async def answer(timeout_s: float) -> bool:
        await asyncio.sleep(0)
        found = next(answers, None)
        if found is None:
            asked_all.set()
        return found is not False

    child.answers = answer  # type: ignore[method-assign]
    keeper = asyncio.create_task(keep(child, QUICK))
    await asyncio.wait_for(asked_all.wait(), 20)
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    assert child.num_kills == 0
