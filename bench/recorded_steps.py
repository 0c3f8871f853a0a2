"""Steps of a check, each a command whose result is recorded as soon as it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu_predictions import compared

ROOT = Path(__file__).resolve().parents[1]
OUTPUT_CHARACTERS = 20_000

Result = dict[str, Any]


@dataclass
class Check:
    """The steps of a run, each recorded as soon as it has ended.

    Attributes:
        about: of the device, and of what is checked on it.
        path: of the results.
        total_s: for all steps.
        steps: what came of each so far.
    """

    about: dict[str, Any]
    path: Path
    total_s: float
    steps: dict[str, Result] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def record(self, name: str, result: Result) -> bool:
        """Write what came of a step; return whether it succeeded."""
        with self._lock:
            self.steps[name] = result
            self.path.parent.mkdir(exist_ok=True)
            self.path.write_text(json.dumps({**self.about, "steps": self.steps}, indent=1) + "\n")
        verdict = "skipped" if "skipped" in result else "ok" if result["ok"] else "FAILED"
        print(f"{name:>10}  {verdict}  {result['s']} s", flush=True)
        return bool(result["ok"])

    def not_run(self, name: str, reason: str) -> None:
        """Record a step that cannot be run as failed."""
        self.record(name, {"ok": False, "s": 0.0, "output": f"not run: {reason}"})
        print(f"not run: {reason}")

    def skip(self, name: str, reason: str) -> None:
        """Record a step that this machine is not meant for."""
        self.record(name, {"ok": True, "s": 0.0, "output": "", "skipped": reason})
        print(f"skipped: {reason}")

    def run(
        self,
        name: str,
        *command: str | Path,
        env: dict[str, str] | None = None,
        timeout_s: float = 240,
        figures: Path | None = None,
    ) -> bool:
        """Run a command from the root, within the time that is left; return whether it succeeded.

        Args:
            name: of the step.
            command: program and arguments.
            env: variables beside those there are.
            timeout_s: for it.
            figures: JSON that it writes, compared with what was predicted.
        """
        print("+", *command, flush=True)
        timeout_s = min(timeout_s, max(1.0, self.total_s - (time.monotonic() - self.began)))
        result = run_command(command, env or {}, timeout_s)
        if figures is not None and figures.exists():
            result["figures"] = json.loads(figures.read_text())
            result["predictions"] = self._compare(name, result["figures"])
        return self.record(name, result)

    def run_together(self, *steps: Callable[[], object]) -> None:
        """Run steps that measure no time side by side."""
        with ThreadPoolExecutor(len(steps)) as pool:
            futures = [pool.submit(step) for step in steps]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # Commands have process groups of their own, which an interrupt does not reach.
                end_commands()
                raise

    def begin_again(self) -> None:
        """Count the time from now on."""
        self.began = time.monotonic()

    def _compare(self, name: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
        found = list(compared(name, self.about["device"], figures))
        for each in found:
            low, high = each["predicted"]
            verdict = "as predicted" if each["as_predicted"] else "NOT AS PREDICTED"
            print(f"{each['name']}: {each['measured']}, predicted {low} to {high}: {verdict}")
        return found


_running: set[subprocess.Popen[str]] = set()


def end_commands() -> None:
    """Kill all commands that run, with all they have started."""
    for process in list(_running):
        with suppress(ProcessLookupError):  # it ends meanwhile
            os.killpg(process.pid, signal.SIGKILL)


def run_command(command: tuple[str | Path, ...], env: dict[str, str], timeout_s: float) -> Result:
    """Return whether a command succeeded, the end of its output, and its time."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        # With all it has started: what goes on would disturb what is measured next.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status, output = 124, f"{output}\nended after {timeout_s:.0f} s"
    finally:
        _running.discard(process)
    tail = output[-OUTPUT_CHARACTERS:]
    print(tail, flush=True)
    return {"ok": status == 0, "s": round(time.perf_counter() - began, 1), "output": tail}
