"""Keeps a child of `quire serve` up: starts it again when it ends, replaces it when it hangs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from launch.cluster.process import ServiceProcess
from quire.contract.errors import ConfigError, UnavailableError
from quire.observe.log import get_logger

# In a row, so that one missed for want of a core, or because this process was stopped itself, does
# not count.
MISSED_CHECKS = 3
# Files may be in the midst of being replaced, memory of the child before not yet free.
CONFIG_ERRORS_IN_A_ROW = 3

log = get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a keeper waits, all in seconds.

    Attributes:
        first_delay_s: before a start, doubled with each that comes to nothing.
        longest_delay_s: before a start.
        steady_s: a child that ended later than that after its start did not die quickly; then its
            successor is held ready.
        hang_timeout_s: without an answer to a health check, until a child is killed.
        start_timeout_s: until a child that starts must answer its first.
    """

    first_delay_s: float = 0.2
    longest_delay_s: float = 30.0
    steady_s: float = 10.0
    hang_timeout_s: float = 20.0
    start_timeout_s: float = 300.0


async def keep(service: ServiceProcess, patience: Patience) -> None:
    """Start a service again whenever it ends, on its old port and for ever, until cancelled.

    Args:
        service: a child that has started once.
        patience: with it.

    Raises:
        ConfigError: it cannot start again for its configuration, which has changed since.
    """
    port = int(service.address.rpartition(":")[2])
    loop = asyncio.get_running_loop()
    delay_s, num_config_errors = patience.first_delay_s, 0
    while True:
        started_s = loop.time()
        async with (
            _beside(_kill_when_it_hangs(service, patience.hang_timeout_s)),
            _beside(_prepare(service, patience.steady_s)),
        ):
            status = await service.wait()
        if loop.time() - started_s > patience.steady_s:
            delay_s = patience.first_delay_s
        log.warning("service_restarting", name=service.name, status=status, delay_s=delay_s)
        await asyncio.sleep(delay_s)
        await service.may_start.wait()
        delay_s = min(2 * delay_s, patience.longest_delay_s)
        try:
            async with _beside(_kill_when_it_hangs(service, patience.start_timeout_s)):
                await service.start(port)
            num_config_errors = 0
        except (ConfigError, UnavailableError) as error:
            log.error("service_restart_failed", name=service.name, error=error.message)
            num_config_errors = num_config_errors + 1 if isinstance(error, ConfigError) else 0
            if num_config_errors == CONFIG_ERRORS_IN_A_ROW:
                raise


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do something else until the block is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _prepare(service: ServiceProcess, delay_s: float) -> None:
    """Hold the next child ready, once this one no longer needs the cores to start."""
    await asyncio.sleep(delay_s)
    await service.prepare()


async def _kill_when_it_hangs(service: ServiceProcess, timeout_s: float) -> None:
    """Kill a child that answers no health check for so long; its keeper then starts another."""
    num_missed = 0
    while num_missed < MISSED_CHECKS:
        if await service.answers(timeout_s / MISSED_CHECKS):
            num_missed = 0
            await asyncio.sleep(timeout_s / MISSED_CHECKS)
        else:
            num_missed += 1
    log.error("service_hangs", name=service.name, timeout_s=timeout_s)
    service.kill()
