"""Runs lanes side by side, shows how far they are, and stops all of them at an interrupt."""

import contextlib
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from tools.lanes.lane import OUTPUT, PYTHON, ROOT, Lane, Outcome
from tools.lanes.report import counts_of

# What lanes have to end by themselves after an interrupt: some stop servers and containers.
STOP_TIMEOUT_S = 60.0
# How often progress is printed: on a terminal in one line that changes, elsewhere in a line each.
TERMINAL_PERIOD_S, LOG_PERIOD_S = 1.0, 60.0
# The last of these in a log is how far the lane is: pytest's share of tests, or ninja's files.
PROGRESS = re.compile(rb"\[ *(\d+%|\d+/\d+)\]")
# What pytest prints of tests that have ended, a letter each.
RESULTS = re.compile(rb"^[.sxFEX]+(?= +\[|$)", re.MULTILINE)


class Runner:
    """Runs lanes: as many that compute as there are cores, and beside them one that waits.

    Args:
        lanes: in the order in which they begin, as far as they may.
        cores: lanes that compute at a time.
        budget_s: seconds after which lanes are stopped or left out; None for no limit.
        on_end: called with each lane's outcome, when it has ended, and the lanes that still run.
        traced: lanes run under tools.lanes.trace.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        cores: int,
        budget_s: float | None = None,
        *,
        on_end: Callable[[Outcome, Collection[Lane]], None] | None = None,
        traced: bool = False,
    ) -> None:
        self._waiting = list(lanes)
        self._cores = cores
        self._on_end = on_end
        self._traced = traced
        self._running: dict[Lane, _Process] = {}
        self._ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._outcomes: list[Outcome] = []
        self._started_at = time.monotonic()
        self._deadline = math.inf if budget_s is None else self._started_at + budget_s
        self._stopped: set[Lane] = set()  # since the time is over
        self._live = sys.stdout.isatty()

    def run(self) -> list[Outcome]:
        """Run all lanes and return how they ended, in that order.

        Raises:
            KeyboardInterrupt: after all lanes were stopped.
        """
        OUTPUT.mkdir(parents=True, exist_ok=True)
        period_s = TERMINAL_PERIOD_S if self._live else LOG_PERIOD_S
        try:
            self._begin_lanes()
            while self._running:
                left_s = max(0.0, self._deadline - time.monotonic())
                try:
                    self._end(self._ended.get(timeout=min(period_s, left_s)))
                except queue.Empty:
                    if time.monotonic() >= self._deadline:
                        self._end_of_time()
                    else:
                        self._show_progress()
        except BaseException:
            self._stop()
            raise
        return self._outcomes

    def _begin_lanes(self) -> None:
        """Begin every lane that has its turn."""
        for lane in list(self._waiting):
            before = [outcome for outcome in self._outcomes if outcome.lane.name in lane.after]
            if not all(outcome.passed for outcome in before):
                self._waiting.remove(lane)
                self._add(Outcome(lane, None))
            elif len(before) == len(lane.after) and self._has_room(lane):
                self._waiting.remove(lane)
                with _interrupts_later():
                    self._running[lane] = _Process(lane, self._ended, self._traced)
                self._print(f"{lane.name}: started, see {lane.log.relative_to(ROOT)}")

    def _has_room(self, lane: Lane) -> bool:
        alike = sum(other.waits == lane.waits for other in self._running)
        return alike < (1 if lane.waits else self._cores)

    def _end(self, outcome: Outcome) -> None:
        del self._running[outcome.lane]
        if outcome.passed:
            counts = counts_of(outcome.lane.results)
            outcome = replace(outcome, skipped=counts is not None and counts.all_skipped)
        elif outcome.lane in self._stopped:
            outcome = replace(outcome, out_of_time=True)
        self._add(outcome)
        self._begin_lanes()

    def _end_of_time(self) -> None:
        """Leave out what waits and stop what runs, at the second time without asking."""
        number = signal.SIGKILL if self._stopped else signal.SIGINT
        left_out, self._waiting = self._waiting, []
        for lane in left_out:
            self._add(Outcome(lane, None, out_of_time=True))
        for lane, process in self._running.items():
            self._print(f"{lane.name}: stopped, the time of the run is over")
            self._stopped.add(lane)
            process.signal(number)
        self._deadline = time.monotonic() + STOP_TIMEOUT_S

    def _add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._print(f"{outcome.lane.name}: {outcome.word}, {outcome.wall_s:.0f} s")
        if self._on_end is not None:
            self._on_end(outcome, self._running.keys())

    def _print(self, line: str) -> None:
        """Print a line that stays, with the seconds since the start."""
        erase = "\r\033[K" if self._live else ""
        print(f"{erase}[{time.monotonic() - self._started_at:5.0f} s] {line}", flush=True)

    def _show_progress(self) -> None:
        parts = [f"{lane.name} {_progress(lane)}" for lane in self._running]
        if self._waiting:
            parts.append(f"waiting: {', '.join(lane.name for lane in self._waiting)}")
        text = "; ".join(parts)
        if self._live:
            width = os.get_terminal_size().columns
            seconds = time.monotonic() - self._started_at
            print(f"\r\033[K{f'[{seconds:5.0f} s] {text}'[: width - 1]}", end="", flush=True)
        else:
            self._print(text)

    def _stop(self) -> None:
        """Interrupt all lanes and return when they have ended; kill what is left then."""
        self._print(f"stopping {', '.join(lane.name for lane in self._running)}")
        deadline = time.monotonic() + STOP_TIMEOUT_S
        left = set(self._running)
        for process in self._running.values():
            process.signal(signal.SIGINT)
        with contextlib.suppress(queue.Empty, KeyboardInterrupt):
            while left:
                left_s = max(0.0, deadline - time.monotonic())
                left.remove(self._ended.get(timeout=left_s).lane)
        for process in self._running.values():
            process.signal(signal.SIGKILL)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold KeyboardInterrupt back until the block is over: no process may start unrecorded."""
    received: list[int] = []
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    for number in numbers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt


class _Process:
    """A lane's command, in a session of its own; reports its end to a queue.

    Args:
        lane: to run.
        ended: gets the outcome.
        traced: it runs under tools.lanes.trace.
    """

    def __init__(self, lane: Lane, ended: "queue.SimpleQueue[Outcome]", traced: bool) -> None:
        for file in (lane.results, lane.trace):
            file.unlink(missing_ok=True)
        niceness = () if lane.waits else ("nice", "-n", "19")
        trace = (PYTHON, "-m", "tools.lanes.trace", str(lane.trace)) if traced else ()
        self._lane = lane
        self._ended = ended
        self._started_at = time.monotonic()
        with lane.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*niceness, *trace, *lane.command],
                cwd=ROOT,
                env=os.environ | lane.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=self._wait, daemon=True).start()

    def signal(self, number: int) -> None:
        """Send a signal to the command and to what it started, in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait(self) -> None:
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.put(
            Outcome(
                self._lane,
                self._process.returncode,
                time.monotonic() - self._started_at,
                usage.ru_utime + usage.ru_stime,
            )
        )


def _progress(lane: Lane) -> str:
    """Return how far a lane is by what its log says."""
    log = lane.log.read_bytes()
    share = PROGRESS.findall(log)
    # pytest names the share only at the end of a line: the number of tests goes on.
    ended = sum(map(len, RESULTS.findall(log)))
    parts = (share[-1].decode() if share else "", f"{ended} tests" if ended else "")
    return " ".join(filter(None, parts)) or "begins"
