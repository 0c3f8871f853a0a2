"""Child processes of `quire serve`: start one, learn where it listens, keep it, stop it."""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from quire.contract.errors import ConfigError, UnavailableError

_PR_SET_PDEATHSIG = 1


def die_with_parent(ready_fd: int) -> None:
    """Ask the kernel (Linux) to send this process SIGTERM when its parent dies, however it dies.

    Args:
        ready_fd: pipe that the parent reads until this process reports that it is ready.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # It may have died before that, during this process's imports: then the pipe has no reader.
    pipe = select.poll()
    pipe.register(ready_fd, 0)
    if pipe.poll(0):
        os.kill(os.getpid(), signal.SIGTERM)


def _ignore(word: str, rest: str) -> None:
    """Hear nothing."""


class ServiceProcess:
    """One service as a child process.

    Attributes:
        name: shown to the user, e.g. "worker 0".
        address: where it listens; empty until `start` has returned.
        admin_address: where its metrics and probes are; empty if it serves none.
    """

    def __init__(self, name: str, command: str, options: Mapping[str, Any]) -> None:
        """Describe a child; nothing runs yet.

        Args:
            name: shown to the user.
            command: subcommand of `quire`, e.g. "worker".
            options: settings of that service without its port, by name. They reach the child as
                JSON on stdin: what is on a command line, every user of this machine can read.
        """
        self.name = name
        self.address = ""
        self.admin_address = ""
        self._command = command
        self._options = dict(options)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id of the running child."""
        return self._running.pid

    async def start(self, port: int, report: Callable[[str, str], None] = _ignore) -> str:
        """Start the child and wait until it can serve.

        Args:
            port: to listen on; 0 takes a free one. A restart gets the port of the first start.
            report: called with the first word and the rest of each line that comes before "ready",
                e.g. "listening" and an address.

        Returns:
            The address the child reported.

        Raises:
            ConfigError: the child said why it cannot start; the message is its one line.
            UnavailableError: the child died without a word.
        """

        def hear_all(word: str, rest: str) -> None:
            if word == "admin":
                self.admin_address = rest
            else:
                report(word, rest)

        options = {**self._options, "port": port}
        if self.admin_address:
            # Scrapers know the port that the first start took.
            options["admin_port"] = int(self.admin_address.rpartition(":")[2])
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "launch.cli.main", self._command],
                *["--ready-fd", str(write_fd)],
                pass_fds=[write_fd],
                stdin=asyncio.subprocess.PIPE,
                # Ctrl-C reaches the supervisor alone, which stops its children in order.
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        await _send(self._process, json.dumps(options, default=str))
        verdict, rest = await _read_verdict(read_fd, hear_all)
        if verdict == "ready":
            self.address = rest
            return rest
        returncode = await self._running.wait()
        if verdict == "error":
            raise ConfigError(rest)
        raise UnavailableError(f"{self.name} ended with status {returncode} before it was ready")

    async def wait(self) -> int:
        """Return the exit status of the child once it has ended; negative is a signal's number."""
        return await self._running.wait()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask the child to end, kill it after `grace_s`, and reap it."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "start() comes first"
        return self._process


async def _send(process: asyncio.subprocess.Process, text: str) -> None:
    """Send a child all that it reads from stdin; one that ended reads nothing."""
    stdin = process.stdin
    assert stdin is not None, "started with a pipe"
    stdin.write(text.encode())
    with contextlib.suppress(ConnectionError):
        await stdin.drain()
    stdin.close()


async def _read_verdict(fd: int, report: Callable[[str, str], None]) -> tuple[str, str]:
    """Read a pipe up to how the start went, and return that: its first word and the rest.

    Both are empty if the child ended before it said so.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        while line := (await reader.readline()).decode(errors="replace").strip():
            word, _, rest = line.partition(" ")
            if word in ("ready", "error"):
                return word, rest
            report(word, rest)
        return "", ""
    finally:
        transport.close()
