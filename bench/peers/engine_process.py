"""An adapter as a child process, spoken to in lines of JSON."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers.adapters.protocol import Options, UnsupportedError
from bench.peers.environments import BUILD, ROOT, python_of
from bench.peers.workloads import Request


class EngineFailedError(Exception):
    """The engine raised an error or died; the message is its own, and names its log."""


class EngineProcess:
    """One engine, alive within the `with` block."""

    def __init__(self, engine: str) -> None:
        self._log = BUILD / f"{engine}-run.log"
        self._module = f"bench.peers.adapters.{engine.replace('-', '_')}"
        self._python = python_of(engine)

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            # A session of its own, so that whatever an engine starts can be ended with it.
            self._process = subprocess.Popen(
                [self._python, "-m", self._module],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(EngineFailedError, UnsupportedError):
            self._ask("stop")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _ask(self, command: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **fields}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailedError(
                f"the process ended, see {self._log.relative_to(ROOT)}"
            ) from None
        line = self._process.stdout.readline()
        if not line:
            raise EngineFailedError(f"the process ended, see {self._log.relative_to(ROOT)}")
        reply: dict[str, Any] = json.loads(line)
        if "unsupported" in reply:
            raise UnsupportedError(reply["unsupported"])
        if "error" in reply:
            raise EngineFailedError(f"{reply['error']}, see {self._log.relative_to(ROOT)}")
        return reply

    def convert(self, options: Options) -> None:
        """Write the model in the engine's own form.

        Raises:
            UnsupportedError: the engine has no such models.
            EngineFailedError: it raised another error, or died.
        """
        self._ask("convert", **asdict(options))

    def start(self, options: Options) -> str:
        """Load the model and return the engine's version; errors as in `convert`."""
        return str(self._ask("start", **asdict(options))["version"])

    def run(self, requests: Sequence[Request]) -> list[list[float]]:
        """Return the times of each answer's tokens, in seconds; errors as in `convert`."""
        reply = self._ask("run", requests=[asdict(request) for request in requests])
        times: list[list[float]] = reply["token_times"]
        return times

    def memory_bytes(self) -> int:
        """Return what the processes of the engine hold now, each shared page counted once."""
        return sum(map(_proportional_bytes, _descendants(self._process.pid)))


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from _descendants(int(child))


def _proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process; 0 once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
