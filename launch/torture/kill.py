"""Processes are killed while streams run, and clients come back for the rest."""

import asyncio
import statistics
import time

from launch.torture.comeback import Comeback, ways_text
from launch.torture.comparison import Outcome, Verdict
from launch.torture.processes import Victims
from launch.torture.questions import Question
from launch.torture.workbench import Result, Workbench

_WAVES_EACH = 3
_UP_PAUSE_S = 0.2


async def kill(bench: Workbench, victims: Victims, every_s: float) -> Result:
    """Kill processes under streams; when the server is back, ask all once more.

    Args:
        bench: to work at.
        victims: to kill, each once.
        every_s: least time between two kills.
    """
    result = Result("kill")
    if not bench.known:
        result.num_not_killed = victims.num_left
        return result
    waves = _Waves(bench, victims, every_s)
    for _ in range(_WAVES_EACH * victims.num_left):
        result.outcomes += await waves.run()
        if not victims.num_left or not await _is_back(bench):
            break
    result.notes += waves.notes()
    result.num_not_killed = victims.num_left + waves.num_ended
    if victims.num_left:
        result.notes.append(
            f"{victims.num_left} were not killed: no streams ran when they were due"
        )
    if await _is_back(bench):
        result.outcomes += await bench.ask_all(bench.known)
    else:
        down = f"the server is down, and did not come back within {bench.server.timeout_s:g} s"
        result.notes.append(down)
        result.outcomes += [
            Outcome(question.name, Verdict.ERROR, detail=down) for question in bench.known
        ]
    return result


async def _is_back(bench: Workbench) -> bool:
    """Return whether the server is there, or comes back within the time of an answer."""
    until = time.monotonic() + bench.server.timeout_s
    while not await bench.server.is_up():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(_UP_PAUSE_S)
    return True


class _Waves:
    """Waves of streams in which processes are killed.

    Args:
        bench: to work at.
        victims: to kill.
        every_s: least time between two kills.

    Attributes:
        num_ended: processes that had ended when they were to be killed.
    """

    def __init__(self, bench: Workbench, victims: Victims, every_s: float) -> None:
        self.num_ended = 0
        self._bench = bench
        self._victims = victims
        self._every_s = every_s
        self._due_at = time.monotonic()
        self._streams: list[Comeback] = []
        self._open: set[Comeback] = set()
        self._events_to_go = 0
        self._is_time = asyncio.Event()
        self._notes: list[str] = []

    async def run(self) -> list[Outcome]:
        """Ask all questions at once, kill what is due, and wait for all answers."""
        await asyncio.sleep(self._due_at - time.monotonic())
        killing = asyncio.create_task(self._kill())
        try:
            return await asyncio.gather(*map(self._ask, self._bench.known))
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)

    async def _ask(self, question: Question) -> Outcome:
        stream = Comeback(self._bench.server, question, self._bench.rng, self._on_event)
        self._streams.append(stream)
        self._open.add(stream)
        try:
            return await self._bench.settle(question, stream.ask)
        finally:
            self._open.remove(stream)

    def _on_event(self, _: Comeback) -> None:
        self._events_to_go -= 1
        if self._events_to_go <= 0:
            self._is_time.set()

    async def _kill(self) -> None:
        """Kill one after another, each some events after it is due, while streams run."""
        while self._victims.num_left:
            await asyncio.sleep(self._due_at - time.monotonic())
            self._events_to_go = self._bench.rng.randint(1, 4 * len(self._bench.known))
            self._is_time.clear()
            await self._is_time.wait()
            if not self._open:
                return  # that was the last event: the next wave has a go
            pid = self._victims.kill_next()
            self.num_ended += pid is None
            self._due_at = time.monotonic() + self._every_s
            for stream in self._open:
                stream.watch_gaps()
            done = f"{pid} was killed" if pid else "one that was to be killed had ended"
            self._notes.append(f"{len(self._open)} streams ran when {done}")

    def notes(self) -> list[str]:
        """Return what was killed, how streams went on, and for how long they stood still."""
        notes = list(self._notes)
        broken = sum(1 for stream in self._streams if stream.num_breaks)
        went_on = ways_text(self._streams)
        notes.append(f"{broken} streams broke" + (f"; went on: {went_on}" if went_on else ""))
        gaps = [each.longest_gap_s for each in self._streams if each.longest_gap_s is not None]
        if gaps:
            notes.append(
                f"stall: {statistics.median(gaps):.2f} s in the median, {max(gaps):.2f} s at most"
            )
        return notes
