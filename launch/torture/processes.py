"""The processes that may be killed: those that were named, and no other that gets their number."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from quire.contract.errors import ConfigError


class Victims:
    """Processes, each held by a descriptor: a number may be another's as soon as one has ended.

    Args:
        pids: of them.
        number: of the signal that each is sent once.

    Raises:
        ConfigError: one is not there, is not this user's, or must not be killed.
    """

    def __init__(self, pids: Sequence[int], number: signal.Signals) -> None:
        self._signal = number
        self._waiting: list[tuple[int, int]] = []
        self._signalled: list[int] = []
        try:
            for pid in dict.fromkeys(pids):
                self._waiting.append((pid, _open(pid)))
        except ConfigError:
            self.close()
            raise

    @property
    def num_left(self) -> int:
        """How many have not been sent the signal."""
        return len(self._waiting)

    def kill_next(self) -> int | None:
        """Send the next one the signal; return its pid, None if it had ended."""
        pid, descriptor = self._waiting.pop(0)
        self._signalled.append(descriptor)
        try:
            signal.pidfd_send_signal(descriptor, self._signal)
        except ProcessLookupError:
            return None
        return pid

    def close(self) -> None:
        """Let go of them; those that were stopped run again."""
        for descriptor in self._signalled:
            if self._signal is signal.SIGSTOP:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        for _, descriptor in self._waiting:
            os.close(descriptor)
        self._signalled, self._waiting = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def signal_named(name: str) -> signal.Signals:
    """Return a signal by its name, with or without SIG.

    Raises:
        ConfigError: there is none.
    """
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise ConfigError(
            f"signal: must be the name of a signal, such as KILL, got {name!r}"
        ) from None


def _open(pid: int) -> int:
    if pid <= 1 or pid == os.getpid():
        raise ConfigError(f"kill: must be the pid of a server's process, got {pid}")
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        raise ConfigError(f"kill: must be the pid of a process that runs, got {pid}") from None
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except PermissionError:
        os.close(descriptor)
        raise ConfigError(f"kill: must be a process that this user may signal, got {pid}") from None
    return descriptor
