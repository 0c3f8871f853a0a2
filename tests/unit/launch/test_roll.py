"""In which order the children of `quire serve` are replaced, and where that stops."""

import asyncio
import signal

import pytest

from launch.cluster.process import ServiceProcess
from launch.cluster.roll import roll
from quire.contract.errors import ConfigError, QuireError, UnavailableError

STARTS = ["start worker 0", "start worker 1", "start scheduler", "start router"]
SPARES = ["spare worker 0", "spare worker 1", "spare scheduler", "spare router"]


class FakeChild(ServiceProcess):
    """A child that is started again as soon as it gets a signal."""

    def __init__(self, name: str, done: list[str], error: QuireError | None = None) -> None:
        super().__init__(name, name.partition(" ")[0], {})
        self._done = done
        self._error = error
        self.number = 0
        self.signals: list[signal.Signals] = []

    @property
    def pid(self) -> int:
        return self.number

    async def renew_spare(self, timeout_s: float) -> None:
        self._done.append(f"spare {self.name}")

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        asyncio.get_running_loop().call_soon(self._start_again)

    def _start_again(self) -> None:
        self.number += 1
        self._done.append(f"start {self.name}")
        self._started(self._error)


def children(done: list[str], fails: str = "") -> list[FakeChild]:
    error = ConfigError("model: must be there, got nothing")
    names = ("worker 0", "worker 1", "scheduler", "router")
    return [FakeChild(name, done, error if name == fails else None) for name in names]


async def test_workers_go_first_then_the_scheduler_then_the_router() -> None:
    done: list[str] = []
    lines: list[str] = []
    services = children(done)
    await roll(services, lines.append)
    assert done == SPARES + STARTS
    assert [line.partition(",")[0] for line in lines[:4]] == [
        f"{name}: pid 0 -> 1" for name in ("worker 0", "worker 1", "scheduler", "router")
    ]
    # It would wait for streams that no other cell continues; its successor adopts the cache.
    assert services[2].signals == [signal.SIGINT]
    assert services[3].signals == [signal.SIGTERM]


async def test_a_roll_stops_at_a_child_that_does_not_start() -> None:
    done: list[str] = []
    services = children(done, fails="scheduler")
    with pytest.raises(UnavailableError) as caught:
        await roll(services, lambda _: None)
    assert caught.value.message == (
        "roll: scheduler does not start: model: must be there, got nothing; the services after it "
        "keep running"
    )
    assert done == SPARES + STARTS[:3]
    assert services[3].signals == []
