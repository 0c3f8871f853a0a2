"""Replacing every child of `quire serve` in turn, with the code that is installed now."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from launch.cluster.drain import DrainProgress
from launch.cluster.process import ServiceProcess
from quire.contract.errors import UnavailableError
from quire.contract.outputs import ModelIds

# For the imports of a successor, and for a start, the load of a model included.
PREPARE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 600.0
# Between two lines about requests that are being finished.
REPORT_S = 5.0
# A scheduler that is to drain would finish what only it may continue. It ends at once instead: the
# workers keep the cache, which its successor adopts.
_SIGNALS = {"scheduler": signal.SIGINT}

Say = Callable[[str], None]


async def prepare(services: Sequence[ServiceProcess]) -> None:
    """Have a successor of each child that has imported the code that is installed now.

    Those held ready before, with the old code, are discarded.

    Raises:
        UnavailableError: one does not come up. Nothing was replaced.
    """
    await asyncio.gather(*(each.renew_spare(PREPARE_TIMEOUT_S) for each in services))


async def replace_each(services: Sequence[ServiceProcess], say: Say) -> None:
    """Replace all children of a cluster: workers, scheduler, router; streams go on.

    Keepers start them again.

    Args:
        services: which are kept; workers first, as ranks of different releases do not work together
            they are replaced at once, then in this order.
        say: called with a line for each that is replaced.

    Raises:
        UnavailableError: a successor does not come up. Those after it keep running.
    """
    workers = _of(services, "worker")
    others = [[each] for each in services if each.command != "worker"]
    for group in filter(None, [workers, *others]):
        try:
            await _all(*(_replace(each, say) for each in group))
        except UnavailableError as error:
            message = f"{error.message}; the services after it keep running"
            raise UnavailableError(message) from error


async def replace_at_rest(
    services: Sequence[ServiceProcess],
    drained: AsyncIterator[DrainProgress],
    say: Say,
    *,
    router_is_last: bool = True,
) -> None:
    """Replace all children of a cluster once its streams have ended; new requests wait.

    The scheduler, which ends when it is drained, starts again when the workers have: nothing is
    computed by a mixture of old and new.

    Args:
        services: which are kept.
        drained: drains the scheduler, and yields how far that is.
        say: called with lines about what is being finished, and one for each that is replaced.
        router_is_last: whether what waits at the router may begin there, and be cut as in any roll;
            else the router ends with the workers, and so does what waits.

    Raises:
        UnavailableError: the scheduler was lost before it was drained, and nothing else was
            replaced; or a successor does not come up.
    """
    (scheduler,), routers = _of(services, "scheduler"), _of(services, "router")
    old, starting = scheduler.pid, scheduler.next_start()
    scheduler.may_start.clear()
    try:
        await _finish(drained, say)
        began = time.monotonic()
        await _all(*(_replace(each, say) for each in _of(services, "worker")))
    except BaseException:
        # Half drained it would neither serve nor end.
        scheduler.send_signal(_SIGNALS["scheduler"])
        raise
    finally:
        scheduler.may_start.set()

    async def start_scheduler() -> None:
        await _until_started(scheduler, starting)
        say(f"scheduler: pid {old} -> {scheduler.pid}, {time.monotonic() - began:.1f} s")

    if router_is_last:
        await start_scheduler()
        await _all(*(_replace(each, say) for each in routers))
    else:
        await _all(start_scheduler(), *(_replace(each, say) for each in routers))


def why_at_rest(old: ModelIds, new: ModelIds | None) -> str:
    """Return why streams of the old code cannot go on under the new; "" if they can.

    Args:
        old: of the model in use.
        new: that the installed code would give it; None if that is a release that does not say.
    """
    if new is None:
        return "the installed code does not say which tokens it computes"
    if old.numerics_id != new.numerics_id:
        ids = f"{old.numerics_id or 'none'} -> {new.numerics_id or 'none'}"
        return f"the new code computes other tokens (numerics id {ids})"
    if old.text_id != new.text_id:
        return (
            "the new code makes other text of tokens "
            f"(text id {old.text_id or 'none'} -> {new.text_id or 'none'})"
        )
    return ""


async def _finish(drained: AsyncIterator[DrainProgress], say: Say) -> None:
    """Have a scheduler finish what it has, and report how many there were and how long it took."""
    reported_s: float | None = None
    async for at in drained:
        if reported_s is None or at.seconds - reported_s >= REPORT_S:
            reported_s = at.seconds
            say(f"{at.num_left} requests are being finished, {at.seconds:.1f} s")
    result = f"{at.num_finished} requests finished by the old code in {at.seconds:.1f} s"
    if at.num_moved:
        result += f", {at.num_moved} moved to other cells"
    if at.num_left:
        result += f"; {at.num_left} were not, and end with an error"
    say(result)


def _of(services: Sequence[ServiceProcess], command: str) -> list[ServiceProcess]:
    return [each for each in services if each.command == command]


async def _all(*work: Coroutine[Any, Any, None]) -> None:
    """Wait for all of it, then raise the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _replace(service: ServiceProcess, say: Say) -> None:
    began, old = time.monotonic(), service.pid
    starting = service.next_start()
    service.send_signal(_SIGNALS.get(service.command, signal.SIGTERM))
    await _until_started(service, starting)
    say(f"{service.name}: pid {old} -> {service.pid}, {time.monotonic() - began:.1f} s")


async def _until_started(service: ServiceProcess, starting: "asyncio.Future[None]") -> None:
    """Return when a child that has ended runs again.

    Raises:
        UnavailableError: it does not.
    """
    try:
        await asyncio.wait_for(starting, START_TIMEOUT_S)
    except TimeoutError:
        raise UnavailableError(
            f"roll: {service.name} must start within {START_TIMEOUT_S:g} s, got no answer"
        ) from None
    except Exception as error:
        raise UnavailableError(f"roll: {service.name} does not start: {error}") from error
