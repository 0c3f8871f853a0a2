"""How a service process is asked to stop, and reports to its parent how its start went."""

import asyncio
import os
import signal
from contextlib import suppress


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
