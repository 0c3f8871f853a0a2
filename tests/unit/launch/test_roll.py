"""In which order the children of `quire serve` are replaced, and where that stops."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from launch.cluster.drain import DrainProgress
from launch.cluster.identity import parse_ids
from launch.cluster.process import ServiceProcess
from launch.cluster.roll import prepare, replace_at_rest, replace_each, why_at_rest
from quire.contract.errors import ConfigError, QuireError, UnavailableError
from quire.contract.outputs import ModelIds

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
        assert self.may_start.is_set()
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
    await prepare(services)
    await replace_each(services, lines.append)
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
        await replace_each(services, lambda _: None)
    assert caught.value.message == (
        "roll: scheduler does not start: model: must be there, got nothing; the services after it "
        "keep running"
    )
    assert done == STARTS[:3]
    assert services[3].signals == []


# ---------------------------------------------------------------- other tokens


async def drained(scheduler: FakeChild, *progress: DrainProgress) -> AsyncIterator[DrainProgress]:
    """Yield how far a scheduler is, which then ends; its keeper starts it as soon as it may."""
    for each in progress:
        yield each

    async def keep() -> None:
        await scheduler.may_start.wait()
        scheduler._start_again()

    scheduler.keeper = asyncio.create_task(keep())  # type: ignore[attr-defined]


async def test_what_only_the_old_code_can_finish_is_finished_first() -> None:
    done: list[str] = []
    lines: list[str] = []
    services = children(done)
    steps = [(0, 0, 3, 0.0), (0, 1, 2, 1.0), (0, 2, 1, 5.5), (1, 2, 0, 6.0)]
    progress = drained(services[2], *(DrainProgress(*step) for step in steps))
    await replace_at_rest(services, progress, lines.append)
    # The scheduler after the workers: what waits is not computed by old ones.
    assert set(done[:2]) == {"start worker 0", "start worker 1"}
    assert done[2:] == ["start scheduler", "start router"]
    assert services[2].signals == []
    assert lines[:3] == [
        "3 requests are being finished, 0.0 s",
        "1 requests are being finished, 5.5 s",
        "2 requests finished by the old code in 6.0 s, 1 moved to other cells",
    ]
    assert lines[-2].startswith("scheduler: pid 0 -> 1, ")


async def test_a_router_that_reads_text_otherwise_ends_with_the_workers() -> None:
    done: list[str] = []
    services = children(done)
    progress = drained(services[2], DrainProgress(0, 0, 0, 0.0))
    await replace_at_rest(services, progress, lambda _: None, router_is_last=False)
    assert set(done[:2]) == {"start worker 0", "start worker 1"}
    assert set(done[2:]) == {"start scheduler", "start router"}


async def test_what_is_not_finished_in_time_is_reported() -> None:
    services, lines = children([]), []  # type: ignore[var-annotated]
    progress = drained(services[2], DrainProgress(0, 0, 2, 0.0), DrainProgress(0, 1, 1, 300.0))
    await replace_at_rest(services, progress, lines.append)
    assert lines[2] == (
        "1 requests finished by the old code in 300.0 s; 1 were not, and end with an error"
    )


async def test_nothing_is_replaced_if_the_scheduler_is_lost_while_it_finishes() -> None:
    async def lost() -> AsyncIterator[DrainProgress]:
        yield DrainProgress(0, 0, 1, 0.0)
        raise UnavailableError("connection lost")

    done: list[str] = []
    services = children(done)
    with pytest.raises(UnavailableError, match=r"^connection lost$"):
        await replace_at_rest(services, lost(), lambda _: None)
    # It would neither serve nor end if it were alive, half drained.
    assert services[2].signals == [signal.SIGINT]
    assert [each.signals for each in services if each.name != "scheduler"] == [[], [], []]
    assert all(each.may_start.is_set() for each in services)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (ModelIds("a1", "b1"), ""),
        (ModelIds("a2", "b1"), "the new code computes other tokens (numerics id a1 -> a2)"),
        (ModelIds("", "b2"), "the new code computes other tokens (numerics id a1 -> none)"),
        (None, "the installed code does not say which tokens it computes"),
        (ModelIds("a1", "b2"), "the new code makes other text of tokens (text id b1 -> b2)"),
    ],
)
def test_either_id_decides(new: ModelIds | None, reason: str) -> None:
    assert why_at_rest(ModelIds("a1", "b1"), new) == reason


def test_ids_of_another_release_are_read() -> None:
    text = '{"numerics_id": "a1", "text_id": "b1", "of_a_later_release": 1}'
    assert parse_ids(text) == ModelIds("a1", "b1")
    for wrong in ("", "[]", '{"numerics_id": "a1"}'):
        with pytest.raises(UnavailableError, match="must print ids"):
            parse_ids(wrong)
