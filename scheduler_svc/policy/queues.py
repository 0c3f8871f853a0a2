"""Which groups wait and which run, in order, and where the time of each goes."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.time_ledger import TimeLedger, WaitReason
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup

_ORDER = attrgetter("order")


def queue_order(
    arrived_at: float, priority: int, ageing_s: float, group_id: int
) -> tuple[float, int]:
    """Return a group's place among others: the smaller one goes first.

    No group waits for ever: each level of priority is worth `ageing_s` seconds of waiting.

    Args:
        arrived_at: in seconds.
        priority: of the request; a smaller one goes first.
        ageing_s: how much later each level of priority counts as come, in seconds.
        group_id: breaks ties, in order of arrival.
    """
    return arrived_at + priority * ageing_s, group_id


class GroupQueue:
    """Groups by id, and sorted by their `order`; queues of thousands cost microseconds."""

    def __init__(self) -> None:
        self._by_id: dict[int, SequenceGroup] = {}
        self._ordered: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._by_id

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yield the groups in order; the queue must not change meanwhile."""
        return iter(self._ordered)

    @property
    def first(self) -> SequenceGroup:
        """The group that goes first. There must be one."""
        return self._ordered[0]

    @property
    def last(self) -> SequenceGroup:
        """The group that goes last. There must be one."""
        return self._ordered[-1]

    def get(self, group_id: int) -> SequenceGroup | None:
        """Return the group of an id, or None if it is not here."""
        return self._by_id.get(group_id)

    def add(self, group: SequenceGroup) -> None:
        """Put a group in its place."""
        self._by_id[group.group_id] = group
        insort(self._ordered, group, key=_ORDER)

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out. It must be here."""
        del self._by_id[group.group_id]
        del self._ordered[bisect_left(self._ordered, group.order, key=_ORDER)]


class Queues:
    """All groups that have not ended. A group changes queues here only, and its time is booked.

    Attributes:
        waiting: groups that do not run yet or were preempted; these come back before those that
            arrived after them. Only to be read.
        running: groups that hold blocks of the cache. Only to be read.
        num_running_seqs: sequences of the running groups.
        prefilling: ids of the running groups without a token since they were started. Only to be
            read.
    """

    def __init__(self) -> None:
        self.waiting = GroupQueue()
        self.running = GroupQueue()
        self.num_running_seqs = 0
        self._ledger = TimeLedger()
        self.prefilling = self._ledger.prefilling

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)

    def find(self, group_id: int) -> SequenceGroup | None:
        """Return the group of an id, or None if it has ended."""
        return self.running.get(group_id) or self.waiting.get(group_id)

    # ------------------------------------------------------------------ transitions

    def queue(self, group: SequenceGroup, include_time_breakdown: bool) -> None:
        """Let a new group wait.

        Args:
            group: to be queued.
            include_time_breakdown: whether to report its time with each of its tokens.
        """
        self.waiting.add(group)
        self._ledger.open(group.group_id, include_time_breakdown)

    def start(self, group: SequenceGroup) -> None:
        """Move a group from those that wait to those that run."""
        self.waiting.remove(group)
        self.running.add(group)
        self.num_running_seqs += group.num_seqs
        self._ledger.start_prefill(group.group_id)

    def start_decode(self, group: SequenceGroup) -> None:
        """Record that a group of `prefilling` has sampled its first token."""
        self._ledger.start_decode(group.group_id)

    def preempt(self, group: SequenceGroup) -> None:
        """Move a group from those that run back to those that wait."""
        self._stop(group)
        self.waiting.add(group)
        self._ledger.preempt(group.group_id)

    def end(self, group: SequenceGroup, progress: Progress) -> None:
        """Take a group out, wherever it is, and report its end and its time.

        Mutates: progress.
        """
        if group.group_id in self.running:
            self._stop(group)
        else:
            self.waiting.remove(group)
        progress.ended_group_ids.append(group.group_id)
        self._ledger.close(group.group_id, progress)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Take a sequence out of its group."""
        num_before = group.num_seqs
        del group.sequences[sequence.sequence_id]
        if group.group_id in self.running:
            self.num_running_seqs -= num_before - group.num_seqs

    def _stop(self, group: SequenceGroup) -> None:
        self.running.remove(group)
        self.num_running_seqs -= group.num_seqs

    # ------------------------------------------------------------------ time

    def advance(self, now: float) -> None:
        """Set the time, in seconds; never less than before."""
        self._ledger.advance(now)

    def wait_for(self, reason: WaitReason) -> None:
        """Set the reason for which all that wait do so from now on."""
        self._ledger.wait_for(reason)

    def report_times(self, progress: Progress) -> None:
        """Report the time breakdowns of the groups with tokens that asked for one.

        Mutates: progress.
        """
        self._ledger.report(progress)

    # ------------------------------------------------------------------ checks

    def check_invariants(self) -> None:
        """Raise AssertionError unless queues, counts and ledger agree."""
        for queue in (self.running, self.waiting):
            orders = [group.order for group in queue]
            assert orders == sorted(set(orders)), "a queue is not in order"
            assert all(group.sequences for group in queue), "an ended group is queued"
        num_seqs = sum(group.num_seqs for group in self.running)
        assert self.num_running_seqs == num_seqs, "sequences miscounted"
        self._ledger.check_invariants(len(self.running) + len(self.waiting))
