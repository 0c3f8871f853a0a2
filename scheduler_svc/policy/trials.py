"""Which request the workers are lost at: suspects compute alone until they are cleared."""

from collections.abc import Mapping
from dataclasses import dataclass

from quire.contract.steps import SchedulerOutputs
from scheduler_svc.policy.queues import Queues
from scheduler_svc.sequences.sequence import SequenceGroup

# Losses of workers while a suspect is computed alone that show that it is the cause.
NO_ACCIDENT = 2
# What the client of the guilty one is sent.
QUARANTINED = (
    "quarantined: workers were lost while they computed this request, and again, or failed, when "
    "they computed it alone"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whom a loss of the workers accuses.

    Attributes:
        suspects: groups that may have caused it, with `suspect_until` set.
        guilty: the suspect that was computed alone, as often as shows it; None if there is none.
    """

    suspects: tuple[SequenceGroup, ...] = ()
    guilty: SequenceGroup | None = None


class Trials:
    """Finds the group that costs the cell its workers, so that it fails alone.

    When the workers are lost, the groups that had no token since they were started are suspects: so
    is the only one that ran. What has run well beside others is none, so that a kill from outside
    delays hardly any. A suspect is computed alone, with no other step in flight and in turns with
    the others, until it has come further than when the workers were lost. If a worker fails at that
    step, it is guilty. Where a worker is gone without a word, somebody may have killed it just
    then: only the second time is no accident.

    Args:
        queues: the groups.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        # Steps without a result.
        self._num_in_flight = 0
        # The suspect that runs, and whether the step in flight is its own.
        self._group: SequenceGroup | None = None
        self._is_computed = False
        # Whether the next step is a suspect's.
        self._is_due = False

    @property
    def must_wait(self) -> bool:
        """Whether nothing may be scheduled before the result of the steps in flight."""
        return self._is_computed or (self._is_due and self._num_in_flight > 0)

    @property
    def group(self) -> SequenceGroup | None:
        """The suspect that runs, which is computed alone; None if none does."""
        if self._group is not None and self._group.group_id not in self._queues.running:
            self._group = None
        return self._group

    def take_turn(self) -> bool:
        """Return whether it is a suspect's turn, and give the next turn to the others."""
        is_due, self._is_due = self._is_due, False
        return is_due

    def may_start(self, group: SequenceGroup, orders: SchedulerOutputs) -> bool:
        """Return whether a waiting group that has a place may start; if not, its turn comes.

        Args:
            group: that waits.
            orders: of the step so far.
        """
        if not group.suspect_until:
            return True
        is_alone = not (self._num_in_flight or orders.sequence_ids or self.group)
        if is_alone:
            self._group = group
        self._is_due = not is_alone
        return is_alone

    def scheduled(self, orders: SchedulerOutputs) -> None:
        """Record that a step is about to be sent, or that its orders were empty."""
        self._num_in_flight += bool(orders.sequence_ids)
        if (group := self.group) is not None:
            self._is_computed = not group.sequences.keys().isdisjoint(orders.sequence_ids)
            self._is_due = not self._is_computed

    def completed(self) -> None:
        """Record that the oldest step in flight has brought its result.

        Mutates: the suspect whose step it was, which may be cleared.
        """
        self._num_in_flight -= 1
        if self._is_computed:
            self._is_computed = False
            group = self.group
            if group is not None and any(
                each.num_computed_tokens >= group.suspect_until for each in group.sequences.values()
            ):
                group.suspect_until = group.num_lost_alone = 0
                self._group = None

    def lost(self, draft_slots: Mapping[int, int], has_failed: bool) -> Verdict:
        """Return whom it accuses that the workers are lost; called while the groups still run.

        Mutates: the suspects.

        Args:
            draft_slots: of the steps in flight, by sequence.
            has_failed: whether a worker reported that it failed; else one is gone, or silent.
        """
        suspect, is_computed, num_in_flight = self.group, self._is_computed, self._num_in_flight
        self._group, self._is_computed, self._is_due, self._num_in_flight = None, False, False, 0
        if is_computed and suspect is not None:
            suspect.num_lost_alone += 1
            is_guilty = has_failed or suspect.num_lost_alone >= NO_ACCIDENT
            return Verdict(guilty=suspect) if is_guilty else Verdict((suspect,))
        running = [group for group in self._queues.running if group is not suspect]
        prefilling = self._queues.prefilling
        suspects = [group for group in running if group.group_id in prefilling]
        if len(running) == 1:
            suspects = running
        if not num_in_flight:
            return Verdict()
        for group in suspects:
            group.suspect_until = max(
                each.num_computed_tokens + draft_slots.get(sequence_id, 0)
                for sequence_id, each in group.sequences.items()
            )
        return Verdict(tuple(suspects))
