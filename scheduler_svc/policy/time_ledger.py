"""Where the time of each group goes. It has no clock: it is told what time it is."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from quire.contract.time_account import TimeAccount
from scheduler_svc.policy.step import GroupTime, Interval, Phase, StepOutcome

# More of a group's history is forgotten: one that is preempted again and again.
MAX_INTERVALS = 64


class Waiting(StrEnum):
    """Why the first of the queue, and all behind it, wait. Values are fields of TimeAccount."""

    STEP = "queue_step_us"
    BLOCKS = "queue_blocks_us"
    SEQS = "queue_seqs_us"
    TOKENS = "queue_tokens_us"
    NOT_READY = "not_ready_us"


_PART_OF_PHASE = {
    Phase.PREEMPTED: "preempted_us",
    Phase.PREFILL: "prefill_us",
    Phase.DECODE: "decode_us",
}
_REASONS = tuple(Waiting)


@dataclass(slots=True)
class _Entry:
    """Of one group.

    Attributes:
        arrived_s: when it came.
        since_s: when its phase began.
        phase: what it is doing.
        queue_s: what the queue had waited, for each reason, when its phase began.
        parts_s: of the phases before.
        intervals: the phases before.
    """

    arrived_s: float
    since_s: float
    phase: Phase
    queue_s: tuple[float, ...]
    parts_s: dict[str, float] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)


class Ledger:
    """Accounts of all groups that have not ended.

    All who wait do so for the reason for which the first of them does. So the queue as a whole has
    one sum for each reason, and a group that leaves it takes what these have grown by: a step costs
    the same whether ten wait or ten thousand.

    Attributes:
        prefilling: ids of the groups that run and have no token yet; only to be read.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting = Waiting.STEP
        self._queue_s = dict.fromkeys(Waiting, 0.0)
        self._entries: dict[int, _Entry] = {}
        # Groups whose account is told with every token of theirs.
        self._told: set[int] = set()
        self.prefilling: set[int] = set()

    def advance(self, now: float) -> None:
        """Say what time it is, in seconds; never less than before."""
        if now > self._now:
            self._queue_s[self._waiting] += now - self._now
            self._now = now

    def queue_waits_for(self, reason: Waiting) -> None:
        """From now on, those who wait do so for this reason."""
        self._waiting = reason

    # ------------------------------------------------------------------ what groups do

    def arrived(self, group_id: int, tell_always: bool) -> None:
        """A new group is queued; with `tell_always`, each of its tokens brings its account."""
        if tell_always:
            self._told.add(group_id)
        self._entries[group_id] = _Entry(
            self._now, self._now, Phase.QUEUED, tuple(self._queue_s.values())
        )

    def admitted(self, group_id: int) -> None:
        """A group runs."""
        self._enter(group_id, Phase.PREFILL)
        self.prefilling.add(group_id)

    def sampled(self, group_id: int) -> None:
        """A group that was prefilling has a token."""
        self._enter(group_id, Phase.DECODE)
        self.prefilling.remove(group_id)

    def preempted(self, group_id: int) -> None:
        """A group is queued again."""
        self._enter(group_id, Phase.PREEMPTED)
        self.prefilling.discard(group_id)

    def ended(self, group_id: int) -> GroupTime:
        """A group has ended: return its account, and its phases."""
        time = self.so_far(group_id)
        assert time is not None, "a group ends once"
        del self._entries[group_id]
        self.prefilling.discard(group_id)
        self._told.discard(group_id)
        return time

    def so_far(self, group_id: int) -> GroupTime | None:
        """Return the account and the phases of a group, None if there is no such group."""
        entry = self._entries.get(group_id)
        if entry is None:
            return None
        last = Interval(entry.phase, entry.since_s, self._now)
        return GroupTime(self.account(group_id), (*entry.intervals, last))

    def _enter(self, group_id: int, phase: Phase) -> None:
        entry = self._entries[group_id]
        for part, seconds in self._of_phase(entry):
            entry.parts_s[part] = entry.parts_s.get(part, 0.0) + seconds
        if len(entry.intervals) < MAX_INTERVALS:
            entry.intervals.append(Interval(entry.phase, entry.since_s, self._now))
        entry.phase, entry.since_s = phase, self._now
        entry.queue_s = tuple(self._queue_s.values())

    # ------------------------------------------------------------------ accounts

    def tell(self, outcome: StepOutcome) -> None:
        """Add to what a step brought the accounts of those who asked, and of those who ended.

        Mutates: outcome.
        """
        if self._told:
            for group_id in self._told.intersection(outcome.group_ids):
                outcome.times[group_id] = GroupTime(self.account(group_id))
        for group_id in outcome.ended_group_ids:
            outcome.times[group_id] = self.ended(group_id)

    def account(self, group_id: int) -> TimeAccount:
        """Return where the time of a group has gone so far.

        Rounding is what may be left over, less than a microsecond: it goes to the largest part.
        """
        entry = self._entries[group_id]
        seconds = dict(entry.parts_s)
        for part, of_phase in self._of_phase(entry):
            seconds[part] = seconds.get(part, 0.0) + of_phase
        total_us = round(1e6 * (self._now - entry.arrived_s))
        parts_us = {part: round(1e6 * each) for part, each in seconds.items()}
        if parts_us:
            largest = max(parts_us, key=lambda part: parts_us[part])
            parts_us[largest] += total_us - sum(parts_us.values())
        return TimeAccount(total_us=total_us, **parts_us)

    def _of_phase(self, entry: _Entry) -> Iterable[tuple[str, float]]:
        """Yield the parts of what has passed since a group's phase began."""
        if entry.phase in (Phase.PREFILL, Phase.DECODE):
            yield _PART_OF_PHASE[entry.phase], self._now - entry.since_s
            return
        for reason, before in zip(_REASONS, entry.queue_s, strict=True):
            grown = self._queue_s[reason] - before
            if grown:
                is_preempted = entry.phase is Phase.PREEMPTED and reason is not Waiting.NOT_READY
                yield _PART_OF_PHASE[Phase.PREEMPTED] if is_preempted else reason.value, grown

    def check_invariants(self, num_groups: int) -> None:
        """Raise AssertionError unless there is an account for each of so many groups."""
        assert len(self._entries) == num_groups, "accounts of nobody, or groups without one"
        prefilling = {key for key, each in self._entries.items() if each.phase is Phase.PREFILL}
        assert self.prefilling == prefilling, "groups prefill that were not told to"
