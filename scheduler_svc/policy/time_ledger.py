"""Where the time of each group goes. The ledger has no clock: its caller sets the time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from quire.contract.time_breakdown import TimeBreakdown
from scheduler_svc.policy.progress import GroupTime, Interval, Phase, Progress

# Later phases of a group count, but are not listed: it may be preempted again and again.
MAX_INTERVALS = 64


class WaitReason(StrEnum):
    """Why the first of the queue, and all behind it, wait. Values are fields of TimeBreakdown."""

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
_REASONS = tuple(WaitReason)


@dataclass(slots=True)
class _Entry:
    """The time of one group, in seconds.

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


class TimeLedger:
    """Time breakdowns of all groups that have not ended.

    All that wait do so for the reason for which the first of them does. So the queue as a whole has
    one sum for each reason, and a group that leaves it takes what these have grown by: a step costs
    the same whether ten wait or ten thousand.

    Attributes:
        prefilling: ids of the groups that run and have no token yet; only to be read.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._reason = WaitReason.STEP
        self._queue_s = dict.fromkeys(WaitReason, 0.0)
        self._entries: dict[int, _Entry] = {}
        # Groups whose breakdown is reported with each of their tokens.
        self._reported: set[int] = set()
        self.prefilling: set[int] = set()

    def advance(self, now: float) -> None:
        """Set the time, in seconds; never less than before."""
        if now > self._now:
            self._queue_s[self._reason] += now - self._now
            self._now = now

    def wait_for(self, reason: WaitReason) -> None:
        """Set the reason for which all that wait do so from now on."""
        self._reason = reason

    # ------------------------------------------------------------------ what groups do

    def open(self, group_id: int, include_time_breakdown: bool) -> None:
        """Enter a new group, which is queued.

        Args:
            group_id: of the group.
            include_time_breakdown: whether `report` includes its breakdown with each of its tokens.
        """
        if include_time_breakdown:
            self._reported.add(group_id)
        self._entries[group_id] = _Entry(
            self._now, self._now, Phase.QUEUED, tuple(self._queue_s.values())
        )

    def start_prefill(self, group_id: int) -> None:
        """Record that a group that waited runs."""
        self._enter(group_id, Phase.PREFILL)
        self.prefilling.add(group_id)

    def start_decode(self, group_id: int) -> None:
        """Record that a group of `prefilling` has a token."""
        self._enter(group_id, Phase.DECODE)
        self.prefilling.remove(group_id)

    def preempt(self, group_id: int) -> None:
        """Record that a group that ran is queued again."""
        self._enter(group_id, Phase.PREEMPTED)
        self.prefilling.discard(group_id)

    def close(self, group_id: int, progress: Progress) -> None:
        """Remove a group, which has ended, and report its time.

        Mutates: progress, `times` and `time_breakdowns`.
        """
        breakdown, entry = self.breakdown(group_id), self._entries.pop(group_id)
        last = Interval(entry.phase, entry.since_s, self._now)
        progress.times[group_id] = GroupTime(breakdown, (*entry.intervals, last))
        self.prefilling.discard(group_id)
        if group_id in self._reported:
            self._reported.remove(group_id)
            progress.time_breakdowns[group_id] = breakdown

    def _enter(self, group_id: int, phase: Phase) -> None:
        entry = self._entries[group_id]
        for part, seconds in self._parts_of_phase(entry):
            entry.parts_s[part] = entry.parts_s.get(part, 0.0) + seconds
        if len(entry.intervals) < MAX_INTERVALS:
            entry.intervals.append(Interval(entry.phase, entry.since_s, self._now))
        entry.phase, entry.since_s = phase, self._now
        entry.queue_s = tuple(self._queue_s.values())

    # ------------------------------------------------------------------ breakdowns

    def report(self, progress: Progress) -> None:
        """Report the time breakdowns of the groups with tokens that asked for one.

        Mutates: progress, `time_breakdowns`.
        """
        if self._reported:
            for group_id in self._reported.intersection(progress.group_ids):
                progress.time_breakdowns[group_id] = self.breakdown(group_id)

    def breakdown(self, group_id: int) -> TimeBreakdown:
        """Return where the time of a group has gone so far.

        The parts are rounded to microseconds; the largest one takes what that leaves over.
        """
        entry = self._entries[group_id]
        seconds = dict(entry.parts_s)
        for part, of_phase in self._parts_of_phase(entry):
            seconds[part] = seconds.get(part, 0.0) + of_phase
        total_us = round(1e6 * (self._now - entry.arrived_s))
        parts_us = {part: round(1e6 * each) for part, each in seconds.items()}
        if parts_us:
            largest = max(parts_us, key=lambda part: parts_us[part])
            parts_us[largest] += total_us - sum(parts_us.values())
        return TimeBreakdown(total_us=total_us, **parts_us)

    def _parts_of_phase(self, entry: _Entry) -> Iterable[tuple[str, float]]:
        """Yield the parts, in seconds, of what has passed since a group's phase began."""
        if entry.phase in (Phase.PREFILL, Phase.DECODE):
            yield _PART_OF_PHASE[entry.phase], self._now - entry.since_s
            return
        for reason, before in zip(_REASONS, entry.queue_s, strict=True):
            grown = self._queue_s[reason] - before
            if grown:
                is_preempted = entry.phase is Phase.PREEMPTED and reason is not WaitReason.NOT_READY
                yield _PART_OF_PHASE[Phase.PREEMPTED] if is_preempted else reason.value, grown

    def check_invariants(self, num_groups: int) -> None:
        """Raise AssertionError unless there is a breakdown for each of so many groups."""
        assert len(self._entries) == num_groups, "groups and breakdowns differ in number"
        prefilling = {key for key, each in self._entries.items() if each.phase is Phase.PREFILL}
        assert self.prefilling == prefilling, "`prefilling` disagrees with the phases"
        assert self._reported <= self._entries.keys(), "an ended group is still reported"
