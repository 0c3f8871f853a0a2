"""Child processes of `quire serve`: start one, learn where it listens, keep it, stop it."""

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence

from quire.contract.errors import ConfigError, UnavailableError

_PR_SET_PDEATHSIG = 1


def die_with_parent(ready_fd: int) -> None:
    """Ask the kernel (Linux) to send this process SIGTERM when its parent dies, however it dies.

    Args:
        ready_fd: pipe that the parent reads until it is told that this process is ready.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # It may have died before that, during this process's imports: then nobody reads the pipe.
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

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Describe a child; nothing runs yet.

        Args:
            name: shown to the user.
            command: `quire` command line without --port and --ready-fd, e.g. ["worker", "--host",
                ...].
        """
        self.name = name
        self.address = ""
        self.admin_address = ""
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id of the running child."""
        return self._running.pid

    async def start(self, port: int, hear: Callable[[str, str], None] = _ignore) -> str:
        """Start the child and wait until it can serve.

        Args:
            port: to listen on; 0 takes a free one. A restart gets the port of the first start.
            hear: called with the first word and the rest of what the child says before it is ready,
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
                hear(word, rest)

        command = list(self._command)
        if self.admin_address:
            # Scrapers know the port that the first start took; the last one given counts.
            command += ["--admin-port", self.admin_address.rpartition(":")[2]]
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "launch.cli.main", *command],
                *["--port", str(port), "--ready-fd", str(write_fd)],
                pass_fds=[write_fd],
                stdin=asyncio.subprocess.DEVNULL,
                # Ctrl-C reaches the supervisor alone, which stops its children in order.
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
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


async def _read_verdict(fd: int, hear: Callable[[str, str], None]) -> tuple[str, str]:
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
            hear(word, rest)
        return "", ""
    finally:
        transport.close()
