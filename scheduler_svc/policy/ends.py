"""How sequences and groups end: their blocks are free, and what came of them is reported."""

from quire.contract.outputs import FinishReason
from scheduler_svc.blocks.residency import Residency
from scheduler_svc.policy.progress import FinishedSequence, Progress
from scheduler_svc.policy.queues import Queues
from scheduler_svc.policy.speculation import Speculation
from scheduler_svc.sequences.sequence import Sequence, SequenceGroup


class Ends:
    """Ends sequences and groups.

    Args:
        queues: the groups.
        residency: which sequences hold blocks.
        speculation: forgets sequences.
    """

    def __init__(self, queues: Queues, residency: Residency, speculation: Speculation) -> None:
        self._queues = queues
        self._residency = residency
        self._speculation = speculation

    def finish_sequence(
        self, group: SequenceGroup, sequence: Sequence, reason: FinishReason, progress: Progress
    ) -> None:
        """End a sequence that is complete, and its group with the last one.

        Mutates: progress.
        """
        self.end_sequence(group, sequence)
        progress.finished.append(FinishedSequence(group.group_id, sequence.sequence_index, reason))
        if not group.sequences and self._queues.find(group.group_id) is not None:
            self.end_group(group, progress)

    def finish_with_vector(self, group: SequenceGroup, vector: bytes, progress: Progress) -> None:
        """End a group that has got the vector it asked for.

        Mutates: progress.
        """
        (sequence,) = group.sequences.values()
        progress.vectors.append((group.group_id, vector))
        self.finish_sequence(group, sequence, FinishReason.STOP, progress)

    def fail_group(
        self,
        group: SequenceGroup,
        progress: Progress,
        reason: FinishReason = FinishReason.ERROR,
    ) -> None:
        """End a group that the workers could not compute.

        Mutates: progress.
        """
        beams = range(group.sampling_params.n if group.beam_search else 0)
        indices = beams or [each.sequence_index for each in group.sequences.values()]
        self._residency.withdraw(group)
        progress.finished.extend(
            FinishedSequence(group.group_id, index, reason) for index in indices
        )
        self.end_group(group, progress)

    def end_group(self, group: SequenceGroup, progress: Progress) -> None:
        """End a group, whatever became of it.

        Mutates: progress.
        """
        for sequence in list(group.sequences.values()):
            self.end_sequence(group, sequence)
        self._queues.end(group, progress)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """End a sequence; its blocks are free unless others share them."""
        self._residency.free(group, sequence)
        self._queues.end_sequence(group, sequence)
        self._speculation.forget(sequence.sequence_id)
