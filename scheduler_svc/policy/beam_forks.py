"""How the beams of a group go on: kept, forked and ended, as its search decides."""

from collections.abc import Callable

from scheduler_svc.blocks.residency import Residency
from scheduler_svc.policy.queues import Queues
from scheduler_svc.sequences.beam_search import Continuation
from scheduler_svc.sequences.sequence import SequenceGroup


class BeamForks:
    """Applies the decisions of beam searches to the sequences of their groups.

    Args:
        queues: the groups.
        residency: which sequences hold blocks.
        next_sequence_id: returns an id that no sequence has had before.
    """

    def __init__(
        self, queues: Queues, residency: Residency, next_sequence_id: Callable[[], int]
    ) -> None:
        self._queues = queues
        self._residency = residency
        self._next_sequence_id = next_sequence_id
        self._chosen_tokens: list[tuple[int, int]] = []

    def advance(self, group: SequenceGroup) -> bool:
        """Choose the next beams of a group, all of whose beams have reported.

        Mutates: the group, unless its search is over.

        Returns:
            Whether the search goes on.
        """
        search, beams = group.beam_search, dict(group.sequences)
        assert search is not None, "only groups of beams have a search"
        continuations = search.advance(
            {sequence_id: beam.token_ids for sequence_id, beam in beams.items()},
            group.stop_token_ids,
            group.max_num_tokens,
        )
        if not continuations:
            return False
        kept: dict[int, Continuation] = {}
        for each in continuations:
            # The first continuation of a beam goes on in its sequence, the others in copies.
            beam = beams[each.sequence_id]
            if each.sequence_id in kept:
                beam = self._residency.fork(group, beam, self._next_sequence_id())
            kept[beam.sequence_id] = each
        for sequence_id in beams.keys() - kept.keys():
            self._residency.free(group, beams[sequence_id])
            self._queues.end_sequence(group, beams[sequence_id])
        for sequence_id, each in kept.items():
            group.sequences[sequence_id].token_ids.append(each.token_id)
            self._chosen_tokens.append((sequence_id, each.token_id))
        search.rename(kept)
        return True

    def take_chosen_tokens(self) -> list[tuple[int, int]]:
        """Return the (sequence, token) pairs that were chosen since the last call."""
        chosen, self._chosen_tokens = self._chosen_tokens, []
        return chosen
