"""How a service process is asked to stop, and reports to its parent how its start went."""

import asyncio
import os
import signal
from collections.abc import Awaitable
from contextlib import suppress

from quire.contract.errors import ConfigError, ModelLoadError, QuireError
from quire.observe.log import failure_of, get_logger

# EX_CONFIG of sysexits.h: a new start cannot help before the configuration is another.
CONFIG_ERROR_STATUS = 78

log = get_logger()


def exit_status(error: QuireError) -> int:
    """Return the exit status of a service that ends with an error."""
    return CONFIG_ERROR_STATUS if isinstance(error, (ConfigError, ModelLoadError)) else 1


def fail(error: QuireError, ready_fd: int | None) -> int:
    """Report what ends this service, to the parent process or in the log; return the exit status.

    Args:
        error: that nothing here can help.
        ready_fd: as of `announce`; None too where the start has been announced.
    """
    status = exit_status(error)
    stack = {} if status == CONFIG_ERROR_STATUS else failure_of(error)
    if ready_fd is None:  # else it is the parent's to say
        log.critical("service_failed", error=error.message, **stack)
    announce(ready_fd, f"error {error.message}")
    return status


async def until_stopped(running: Awaitable[None]) -> signal.Signals:
    """Wait until this process is asked to stop; return which signal it was.

    Args:
        running: what the service does meanwhile; raises what ends it before.
    """
    stopped, ended = asyncio.create_task(stop_signal()), asyncio.ensure_future(running)
    try:
        await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        return await stopped
    finally:
        stopped.cancel()
        ended.cancel()
        await asyncio.gather(stopped, ended, return_exceptions=True)


async def stop_signal() -> signal.Signals:
    """Wait until this process is asked to stop; return which it was, SIGINT or SIGTERM."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received.put_nowait, number)
    return await received.get()


def report(ready_fd: int | None, line: str) -> None:
    """Report to the parent process how a start goes; `announce` reports its end.

    Args:
        ready_fd: file descriptor to write to; None does nothing.
        line: "listening HOST:PORT", or "waiting for WHAT".
    """
    if ready_fd is not None:
        # A parent that has gone takes this process with it by other means.
        with suppress(BrokenPipeError):
            os.write(ready_fd, (line.replace("\n", " ") + "\n").encode())


def announce(ready_fd: int | None, line: str) -> None:
    """Report to the parent process, over the pipe it passed as `ready_fd`, how the start went.

    Args:
        ready_fd: file descriptor to write to and close; None does nothing.
        line: "ready HOST:PORT" or "error MESSAGE".
    """
    if ready_fd is None:
        return
    with os.fdopen(ready_fd, "w") as pipe:
        pipe.write(line.replace("\n", " ") + "\n")
