"""Prefix caching: a sequence begins with blocks of a prefix that was computed before."""

from bisect import bisect_left
from collections.abc import Collection
from collections.abc import Sequence as AbstractSequence

from quire.contract.block_hashes import extend_block_hashes
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.sequences.sequence import Sequence


class PrefixCache:
    """Finds the blocks that a sequence can begin with, and publishes those it has filled.

    Args:
        block_manager: of the workers' cache.
        enabled: whether to find and publish at all.

    Attributes:
        num_tokens_looked_up: of all sequences that took what was found for them.
        num_tokens_found: those of them that were in the cache.
    """

    def __init__(self, block_manager: BlockSpaceManager, enabled: bool) -> None:
        self._blocks = block_manager
        self._block_size = block_manager.block_size
        self._enabled = enabled
        self.num_tokens_looked_up = 0
        self.num_tokens_found = 0

    def find(self, sequence: Sequence, salt: bytes) -> list[int]:
        """Return the published blocks that a waiting sequence can begin with.

        At least its last token is left to compute, since that is what samples the next one.
        """
        if not self._enabled:
            return []
        num_blocks = (sequence.num_tokens - 1) // self._block_size
        self._extend_hashes(sequence, num_blocks, salt)
        return self._blocks.find_prefix(sequence.block_hashes[:num_blocks])

    def num_tokens_to_find(self, sequence: Sequence, salt: bytes, coming: Collection[bytes]) -> int:
        """Return about how many tokens of a waiting sequence need not be computed.

        Args:
            sequence: that waits.
            salt: of its group.
            coming: hashes of blocks that will be published before it starts.
        """
        if not self._enabled:
            return 0
        num_blocks = (sequence.num_tokens - 1) // self._block_size
        self._extend_hashes(sequence, num_blocks, salt)
        hashes = sequence.block_hashes
        # Binary search, since queues are long: if a block can be found, those before it nearly
        # always can, too.
        num_found = bisect_left(
            range(num_blocks),
            True,
            key=lambda i: hashes[i] not in coming and not self._blocks.can_find(hashes[i]),
        )
        return num_found * self._block_size

    def take(self, sequence: Sequence, block_ids: AbstractSequence[int]) -> None:
        """Count the found blocks, which the table begins with, as computed.

        Mutates: sequence.
        """
        sequence.num_computed_tokens = len(block_ids) * self._block_size
        sequence.num_published_blocks = len(block_ids)
        self.num_tokens_looked_up += sequence.num_tokens
        self.num_tokens_found += sequence.num_computed_tokens

    def publish(self, sequence: Sequence, salt: bytes) -> None:
        """Let other sequences find the full blocks of a running one, as far as its ids are known.

        Their contents may be computed by a step that is only scheduled. Steps run in order, so they
        are there before a sequence that finds them reads them.

        Mutates: sequence.
        """
        num_tokens = min(sequence.num_computed_tokens, len(sequence.token_ids))
        num_blocks = num_tokens // self._block_size
        if self._enabled:
            self._extend_hashes(sequence, num_blocks, salt)
            for index in range(sequence.num_published_blocks, num_blocks):
                self._blocks.publish(sequence.sequence_id, index, sequence.block_hashes[index])
        sequence.num_published_blocks = num_blocks

    def _extend_hashes(self, sequence: Sequence, num_blocks: int, salt: bytes) -> None:
        extend_block_hashes(
            sequence.block_hashes, sequence.token_ids, self._block_size, num_blocks, salt
        )
