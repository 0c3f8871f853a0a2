"""The router's side of a sandbox: questions go to processes that can be ended."""

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from quire.contract.errors import InvalidRequestError, OverloadedError, UnavailableError
from quire.observe.log import get_logger
from router.sandbox.child import LENGTH, OUT_OF_MEMORY, encode

NUM_PROCESSES = 2
# Why a process is not started for now; anything else does not pass by itself.
_FULL = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
RETRY_AFTER_MS = 1_000
# All that a process gets of the router's environment, which may hold keys.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")

log = get_logger()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use.

    Attributes:
        max_cpu_s: processor time of an answer, in seconds.
        max_memory_bytes: address space.
        max_stack_bytes: stack.
    """

    max_cpu_s: float
    max_memory_bytes: int
    max_stack_bytes: int = 2**23


class LimitReachedError(Exception):
    """An answer would have taken more than a limit allows, which is what its text says."""


class Sandbox:
    """Up to two processes that answer questions, and start when they are needed.

    One that does not end is killed with its process after a limit, and delays others only while
    both processes have one.

    Args:
        module: what runs there, by `router.sandbox.child.serve`.
        settings: returns what its `prepare` gets.
        limits: of each process.
        max_queued: questions that wait for or are in a process at once.
        name: in messages, e.g. "the chat template".
    """

    def __init__(
        self,
        module: str,
        settings: Callable[[], Mapping[str, Any]],
        limits: Limits,
        max_queued: int,
        name: str,
    ) -> None:
        self._name = name
        self._max_queued = max_queued
        self._num_queued = 0
        self._processes = [_Process(module, settings, limits, name) for _ in range(NUM_PROCESSES)]
        self._idle: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()
        for process in self._processes:
            self._idle.put_nowait(process)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._was_refused = False  # a process, when one was to be started last

    async def ask(self, question: Mapping[str, Any]) -> Any:
        """Return the answer to a question.

        Raises:
            InvalidRequestError: as was raised there.
            LimitReachedError: it takes too much.
            OverloadedError: too many questions wait, or the system has no process left for it.
            UnavailableError: the process has ended, and not by a limit, or cannot be started.
        """
        if self._num_queued >= self._max_queued:
            raise OverloadedError(
                f"at most {self._max_queued} requests wait for {self._name}", RETRY_AFTER_MS
            )
        message = encode(question)
        self._num_queued += 1
        task = asyncio.create_task(self._exchange(message))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        # A client that goes away leaves no answer in a pipe for the next one to read.
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio reports one that no client is left for

    async def _exchange(self, message: bytes) -> Any:
        try:
            process = await self._idle.get()
            try:
                if not process.is_running:
                    await self._start(process)
                return await process.ask(message)
            finally:
                self._idle.put_nowait(process)
        finally:
            self._num_queued -= 1

    async def _start(self, process: "_Process") -> None:
        try:
            await process.start()
        except OSError as error:
            if not self._was_refused:  # once, however many ask meanwhile
                log.error("sandbox_not_started", name=self._name, error=str(error))
            self._was_refused = True
            if error.errno not in _FULL:
                raise UnavailableError(f"no process can be started for {self._name}") from None
            raise OverloadedError(
                f"no process can be started for {self._name} now", RETRY_AFTER_MS
            ) from None
        self._was_refused = False

    async def close(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            await process.stop()


class _Process:
    """One process, to be started before its first question, and again after it was killed."""

    def __init__(
        self, module: str, settings: Callable[[], Mapping[str, Any]], limits: Limits, name: str
    ) -> None:
        self._module = module
        self._settings = settings
        self._limits = limits
        self._name = name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ask(self, message: bytes) -> Any:
        try:
            answer = await self._exchange(message)
        except (asyncio.IncompleteReadError, OSError):
            raise await self._reason_of_loss() from None
        except BaseException:
            await self.stop()  # an answer may be on its way
            raise
        if "answer" in answer:
            return answer["answer"]
        raise InvalidRequestError(answer["field"], answer["description"])

    async def _exchange(self, message: bytes) -> Any:
        process = self._process
        assert process and process.stdin and process.stdout, "it was started, with pipes"
        process.stdin.write(message)
        await process.stdin.drain()
        (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        return json.loads(await process.stdout.readexactly(size))

    async def _reason_of_loss(self) -> Exception:
        """Its pipes are closed, so it is ending."""
        assert self._process is not None, "it was started"
        status, self._process = await self._process.wait(), None
        limits = self._limits
        if status == -signal.SIGPROF:
            return LimitReachedError(f"{limits.max_cpu_s:g} s of processor time")
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # the latter where Rust has none
            return LimitReachedError(f"{limits.max_memory_bytes >> 20} MiB of memory")
        if status == -signal.SIGSEGV:
            return LimitReachedError(f"{limits.max_stack_bytes >> 20} MiB of stack")
        return UnavailableError(f"the process of {self._name} ended with status {status}")

    async def start(self) -> None:
        first = encode({"settings": self._settings(), "limits": asdict(self._limits)})
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # a signal to the router's group is not for it
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(first)

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):  # it has ended
            process.kill()
        await process.wait()
