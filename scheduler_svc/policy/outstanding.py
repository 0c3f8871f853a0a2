"""How much work a cell has before it, in tokens; routers compare cells by this."""

from itertools import islice

from scheduler_svc.blocks.prefix_cache import PrefixCache
from scheduler_svc.policy.queues import Queues
from scheduler_svc.sequences.sequence import SequenceGroup, SequenceStatus

# The rest of a longer queue is taken to be like its beginning.
MAX_WAITING_LOOKED_AT = 64


def outstanding_tokens(queues: Queues, prefix_cache: PrefixCache) -> int:
    """Return the tokens that are not computed yet, and TOKENS_OF_DECODING for each that decodes.

    Waiting groups are counted without the prefixes that they will find in the cache: because these
    are there now, or because a group before computes them. Else a cell with a burst of requests for
    one document would look busier than it is.

    Args:
        queues: the groups of the cell.
        prefix_cache: where prefixes are found.
    """
    total = 0
    coming: set[bytes] = set()
    for group in queues.running:
        for sequence in group.sequences.values():
            if sequence.status is SequenceStatus.RUNNING:
                num_left = len(sequence.token_ids) - sequence.num_computed_tokens
                if num_left > 1:
                    total += num_left
                    coming.update(sequence.block_hashes)
        total += group.tokens_of_decoding
    num_looked_at = waiting_tokens = 0
    for group in islice(queues.waiting, MAX_WAITING_LOOKED_AT):
        num_looked_at += 1
        waiting_tokens += _waiting_tokens(group, prefix_cache, coming)
    if num_looked_at:
        total += waiting_tokens * len(queues.waiting) // num_looked_at
    return total


def _waiting_tokens(group: SequenceGroup, prefix_cache: PrefixCache, coming: set[bytes]) -> int:
    """Return the tokens that a waiting group has to compute.

    Mutates: coming, the hashes that groups before it will have published; its own are added.
    """
    total = group.tokens_of_decoding
    waiting = group.in_status(SequenceStatus.WAITING)
    if not waiting:
        return total  # all of it is in the host's memory
    first, *others = waiting
    # The prompt is computed once, by the first.
    total += sum(sequence.num_output_tokens for sequence in others)
    num_found = prefix_cache.num_tokens_to_find(first, group.cache_salt, coming)
    coming.update(first.block_hashes)
    return total + first.num_tokens - num_found
