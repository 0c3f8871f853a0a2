"""How long a step has really run: while a thread waits for a core, a step does not hang."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from quire.rpc.heartbeat import INTERVAL_S

_TASKS = Path("/proc/self/task")


def waits_for_cores() -> dict[str, float]:
    """Return how long each thread of this process has waited for a core, in seconds, ever.

    Empty where the kernel does not count it (Linux does: schedstat).
    """
    waits = {}
    try:
        for task in _TASKS.iterdir():
            waits[task.name] = 1e-9 * int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError):
        pass  # a thread that has just ended, or no Linux
    return waits


class StepClock:
    """Counts the running time of the step under way, tick by tick.

    What does not count: time in which this process was stopped, and the longest time that one of
    its threads waited for a core; the others wait for that one.

    Args:
        now: returns the time in seconds.
        waits: returns the seconds that each thread has waited for a core.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        waits: Callable[[], Mapping[str, float]] = waits_for_cores,
    ) -> None:
        self._now = now
        self._waits = waits
        self._last_s = now()
        self._waited = waits()
        self._step_id = 0
        self._running_s = 0.0

    def tick(self, step_id: int, running_s: float) -> float:
        """Return for how long the step under way has run, in seconds.

        Args:
            step_id: its number; 0 if there is none.
            running_s: time since it began.
        """
        now, waited = self._now(), self._waits()
        delays = [each - self._waited.get(name, each) for name, each in waited.items()]
        elapsed_s = min(now - self._last_s, 2 * INTERVAL_S) - max(delays, default=0.0)
        if step_id != self._step_id:
            self._step_id, self._running_s = step_id, 0.0
        self._running_s = min(self._running_s + max(0.0, elapsed_s), running_s)
        self._last_s, self._waited = now, waited
        return self._running_s
