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

from quire.contract.errors import ConfigError, QuireError, UnavailableError
from quire.rpc import CONFIG_ERROR_STATUS, Role, TlsFiles, answers

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# What `ps -o comm` shows of a child until it has its options.
SPARE_NAME = "quire spare"
# What a child reports when it has imported what it needs, before it has its options.
IMPORTED = "imported"


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


def show_as(name: str) -> None:
    """Set the name (Linux) that `ps -o comm` shows of this process; at most 15 bytes count."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def _ignore(word: str, rest: str) -> None:
    """Hear nothing."""


class ServiceProcess:
    """One service as a child process.

    Attributes:
        name: shown to the user, e.g. "worker 0".
        command: subcommand of `quire`, e.g. "worker".
        address: where it listens; empty until `start` has returned.
        admin_address: where its metrics and probes are; empty if it serves none.
        http_address: where it speaks HTTP to clients; empty if it does not.
        module: what runs the subcommand.
        may_start: set but while its keeper must not start it again yet.
    """

    module = "launch.cli.main"

    def __init__(
        self,
        name: str,
        command: str,
        options: Mapping[str, Any],
        tls: TlsFiles | None = None,
    ) -> None:
        """Describe a child; nothing runs yet.

        Args:
            name: shown to the user.
            command: subcommand of `quire`, e.g. "worker".
            options: settings of that service without its port, by name. They reach the child as
                JSON on stdin: what is on a command line, every user of this machine can read.
            tls: certificate for health checks; None checks in the clear.
        """
        self.name = name
        self.address = ""
        self.admin_address = ""
        self.http_address = ""
        self.command = command
        self._options = dict(options)
        self._tls = tls
        self._process: asyncio.subprocess.Process | None = None
        # A child that waits for its options, and the pipe on which it will report.
        self._spare: tuple[asyncio.subprocess.Process, int] | None = None
        self._next_start: asyncio.Future[None] | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()

    @property
    def pid(self) -> int:
        """Process id of the running child."""
        return self._running.pid

    @property
    def spare_pid(self) -> int | None:
        """Process id of the child held ready for the next start; None if there is none."""
        return self._spare[0].pid if self._spare else None

    async def start(self, port: int, report: Callable[[str, str], None] = _ignore) -> str:
        """Start the child and wait until it can serve.

        Args:
            port: to listen on; 0 takes a free one. A restart gets the port of the first start.
            report: called with the first word and the rest of each line that comes before "ready",
                e.g. "listening" and an address.

        Returns:
            The address the child reported.

        Raises:
            ConfigError: the child cannot start for its configuration; the message is its one line.
            UnavailableError: the child reported another reason, or died without a word.
        """
        try:
            address = await self._start(port, report)
        except QuireError as error:
            self._started(error)
            raise
        self._started()
        return address

    def next_start(self) -> "asyncio.Future[None]":
        """Return what is done when the next start has ended, with its error if it came to one."""
        self._next_start = asyncio.get_running_loop().create_future()
        return self._next_start

    def _started(self, error: QuireError | None = None) -> None:
        waiting, self._next_start = self._next_start, None
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    async def _start(self, port: int, report: Callable[[str, str], None]) -> str:
        def hear_all(word: str, rest: str) -> None:
            if word == "admin":
                self.admin_address = rest
            elif word == "http":
                self.http_address = rest
            elif word != IMPORTED:
                report(word, rest)

        options = {**self._options, "port": port}
        if self.admin_address:
            # Scrapers know the port that the first start took.
            options["admin_port"] = int(self.admin_address.rpartition(":")[2])
        if self.http_address and not self.http_address.startswith("unix:"):
            options["http_port"] = int(self.http_address.rpartition(":")[2])
        if self._spare is not None and self._spare[0].returncode is not None:
            await self._drop_spare()
        spare, self._spare = self._spare, None
        self._process, read_fd = spare or await self._spawn()
        await _send(self._process, json.dumps(options, default=str))
        verdict, rest = await _read_verdict(read_fd, hear_all)
        if verdict == "ready":
            self.address = rest
            return rest
        returncode = await self._running.wait()
        if returncode == CONFIG_ERROR_STATUS:
            raise ConfigError(rest)
        if verdict == "error":
            raise UnavailableError(rest)
        raise UnavailableError(f"{self.name} ended with status {returncode} before it was ready")

    async def prepare(self) -> None:
        """Have a child ready for the next start: it has imported what it needs by then."""
        if self._spare is None:
            spare = await self._spawn()
            await self._drop_spare()  # one that came meanwhile
            self._spare = spare

    async def renew_spare(self, timeout_s: float) -> None:
        """Have a child ready for the next start that has imported the code installed now.

        Args:
            timeout_s: for its imports.

        Raises:
            UnavailableError: it ended, or was not ready in time.
        """
        await self._drop_spare()
        spare = process, read_fd = await self._spawn()
        readable, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(read_fd, readable.set)
        try:
            # It reports, or ends and thereby closes the pipe.
            await asyncio.wait_for(readable.wait(), timeout_s)
            word = os.read(read_fd, len(IMPORTED) + 1)
        except TimeoutError:
            word = b""
        finally:
            loop.remove_reader(read_fd)
        if self._spare is not None:
            await self._drop_spare()
        self._spare = spare
        if not word:
            await self._drop_spare()
            raise UnavailableError(
                f"roll: the successor of {self.name} must come up, got status {process.returncode}"
            )

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, int]:
        """Return a child that imports what it needs and waits for options, and its pipe."""
        read_fd, write_fd = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", self.module, self.command],
                *["--ready-fd", str(write_fd)],
                pass_fds=[write_fd],
                stdin=asyncio.subprocess.PIPE,
                # Ctrl-C reaches the supervisor alone, which stops its children in order.
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        return process, read_fd

    def set_option(self, name: str, value: Any) -> None:
        """Change an option of the child, from its next start on."""
        self._options[name] = value

    async def wait(self) -> int:
        """Return the exit status of the child once it has ended; negative is a signal's number."""
        return await self._running.wait()

    async def answers(self, timeout_s: float) -> bool:
        """Return whether the child answers a health check in time, whatever it answers."""
        return await answers(self.address, timeout_s, self._tls, Role[self.command.upper()])

    def send_signal(self, number: signal.Signals) -> None:
        """Send the child a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._running.send_signal(number)

    def kill(self) -> None:
        """End the child at once."""
        with contextlib.suppress(ProcessLookupError):
            self._running.kill()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask the child to end, kill it after `grace_s`, and reap it; so too one held ready."""
        await self._drop_spare()
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            # It may end while it is being killed.
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _drop_spare(self) -> None:
        if self._spare is not None:
            (spare, read_fd), self._spare = self._spare, None
            os.close(read_fd)
            with contextlib.suppress(ProcessLookupError):
                spare.kill()
            await spare.wait()

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
