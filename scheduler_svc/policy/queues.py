"""Which groups wait and which run, in order, and where the time of each goes."""

from scheduler_svc.policy.group_queue import GroupQueue
from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.tenants import WaitingGroups
from scheduler_svc.policy.time_ledger import TimeLedger, WaitReason
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup


class Queues:
    """All groups that have not ended. A group changes queues here only, and its time is booked.

    Attributes:
        waiting: groups that do not run yet or were preempted; these come back before those of the
            same tenant that arrived after them. Only to be read.
        running: groups that hold blocks of the cache. Only to be read.
        num_running_seqs: sequences of the running groups.
        num_started: how often a group has begun to run so far.
        prefilling: ids of the running groups without a token since they were started. Only to be
            read.
    """

    def __init__(self) -> None:
        self.waiting = WaitingGroups()
        self.running = GroupQueue()
        self.num_running_seqs = 0
        self.num_started = 0
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
        self.waiting.introduce(group, self.running)
        self._ledger.open(group.group_id, include_time_breakdown)

    def start(self, group: SequenceGroup) -> None:
        """Move a group from those that wait to those that run."""
        self.waiting.remove(group)
        self.running.add(group)
        self.num_running_seqs += group.num_seqs
        self.num_started += 1
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
        self.waiting.forget(group)
        progress.ended_group_ids.append(group.group_id)
        self._ledger.close(group.group_id, progress)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Take a sequence out of its group."""
        self.waiting.charge(group, sequence)
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
        self.running.check_invariants()
        self.waiting.check_invariants(len(self.running))
        num_seqs = sum(group.num_seqs for group in self.running)
        assert self.num_running_seqs == num_seqs, "sequences miscounted"
        self._ledger.check_invariants(len(self.running) + len(self.waiting))
