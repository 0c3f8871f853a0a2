"""Replacing every child of `quire serve` in turn, with the code that is installed now."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from launch.cluster.process import ServiceProcess
from quire.contract.errors import UnavailableError

# For the imports of a successor, and for a start, the load of a model included.
PREPARE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 600.0
# A scheduler that is to drain would finish what only it may continue. It ends at once instead: the
# workers keep the cache, which its successor adopts.
_SIGNALS = {"scheduler": signal.SIGINT}


async def roll(services: Sequence[ServiceProcess], say: Callable[[str], None]) -> None:
    """Replace all children of a cluster in turn: workers, scheduler, router.

    Keepers start them again. Before anything is stopped, a successor of each has imported the code
    that is installed now; those held ready before, with the old code, are discarded.

    Args:
        services: which are kept; workers first, as ranks of different releases do not work together
            they are replaced at once, then in this order.
        say: called with a line for each that is replaced.

    Raises:
        UnavailableError: a successor does not come up. Those after it keep running.
    """
    began = time.monotonic()
    await asyncio.gather(*(each.renew_spare(PREPARE_TIMEOUT_S) for each in services))
    workers = [each for each in services if each.command == "worker"]
    others = [[each] for each in services if each.command != "worker"]
    for group in filter(None, [workers, *others]):
        await asyncio.gather(*(_replace(each, say) for each in group))
    say(f"{len(services)} processes replaced in {time.monotonic() - began:.1f} s")


async def _replace(service: ServiceProcess, say: Callable[[str], None]) -> None:
    began, old = time.monotonic(), service.pid
    starting = service.next_start()
    service.send_signal(_SIGNALS.get(service.command, signal.SIGTERM))
    try:
        await asyncio.wait_for(starting, START_TIMEOUT_S)
    except TimeoutError:
        raise UnavailableError(
            f"roll: {service.name} must start within {START_TIMEOUT_S:g} s, got no answer; "
            "the services after it keep running"
        ) from None
    except Exception as error:
        raise UnavailableError(
            f"roll: {service.name} does not start: {error}; the services after it keep running"
        ) from error
    say(f"{service.name}: pid {old} -> {service.pid}, {time.monotonic() - began:.1f} s")
