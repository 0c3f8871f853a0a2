"""What each block holds, so that a scheduler that starts anew can find it."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quire.contract.block_hashes import hashes_after, root_hash
from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import CachedBlock

# (depth, digest). A block that is written again gets a new one, even for the same contents.
Entry: TypeAlias = tuple[int, bytes]


class CacheContents:
    """Digests of full blocks of the cache and of the host's memory.

    Invariant: a block that has a digest holds the keys and values of the tokens that it names, as
    this rank has computed them. So a digest is recorded from the tokens themselves, once they are
    computed, and dropped before anything is written to its block.

    Args:
        block_size: tokens of a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # By block, the least recently used first.
        self._blocks: dict[int, Entry] = {}
        self._host_blocks: dict[int, Entry] = {}
        # One of the blocks that have a digest, for most digests.
        self._block_of: dict[bytes, int] = {}
        # Of the last two steps: blocks whose contents may still be on their way from the host.
        self._arriving: tuple[frozenset[int], ...] = (frozenset(), frozenset())

    @property
    def blocks(self) -> tuple[CachedBlock, ...]:
        """Of the cache, the least recently used first."""
        return _listed(self._blocks)

    @property
    def host_blocks(self) -> tuple[CachedBlock, ...]:
        """Of the host's memory, the least recently used first."""
        return _listed(self._host_blocks)

    def record(
        self,
        block_ids: npt.NDArray[np.int32],
        token_ids: npt.NDArray[np.int32],
        first: int,
        salt: bytes,
    ) -> None:
        """Record further blocks of a sequence, which are full and computed.

        Those that are known, since they were another sequence's, are not hashed again. Nothing is
        recorded behind a block that is not known.

        Args:
            block_ids: [num_blocks] int32, the sequence's first blocks.
            token_ids: [num_blocks * block_size] int32 tokens that they hold.
            first: how many of the blocks were recorded before.
            salt: of the sequence.
        """
        while first < len(block_ids) and int(block_ids[first]) in self._blocks:
            first += 1
        before = self._blocks.get(int(block_ids[first - 1])) if first else (0, root_hash(salt))
        if before is None:
            return
        tokens = token_ids[first * self._block_size :].tobytes()
        digests = hashes_after(before[1], tokens, self._block_size)
        for depth, (block_id, digest) in enumerate(
            zip(block_ids[first:].tolist(), digests, strict=True), first + 1
        ):
            self.add(CachedBlock(block_id, depth, digest))

    def add(self, block: CachedBlock) -> None:
        """Record a block whose contents are in place."""
        self._blocks[block.block_id] = block.depth, block.digest
        self._block_of[block.digest] = block.block_id

    def find(self, digest: bytes) -> tuple[int, Entry] | None:
        """Return a block of the cache whose contents are in place; may be called by any thread.

        What is read of it counts only if `still_holds` afterwards: its place may be needed.
        """
        block_id = self._block_of.get(digest)
        if block_id is None or any(block_id in arriving for arriving in self._arriving):
            return None
        entry = self._blocks.get(block_id)
        return None if entry is None or entry[1] != digest else (block_id, entry)

    def still_holds(self, block_id: int, entry: Entry) -> bool:
        """Return whether nothing was written to a block since `find`; from any thread."""
        return self._blocks.get(block_id) is entry

    def touch(self, block_ids: npt.NDArray[np.int32]) -> None:
        """Count the first blocks [num_blocks] int32 of a sequence as used last."""
        # Last block first: the beginning of a text is of use to more than its end.
        for block_id in reversed(block_ids.tolist()):
            if (entry := self._blocks.pop(block_id, None)) is not None:
                self._blocks[block_id] = entry

    def drop(self, block_ids: Iterable[int]) -> None:
        """Drop what is about to be written."""
        for block_id in block_ids:
            entry = self._blocks.pop(block_id, None)
            if entry is not None and self._block_of.get(entry[1]) == block_id:
                del self._block_of[entry[1]]

    def move(self, orders: SchedulerOutputs) -> None:
        """Follow the blocks that a step moves and copies."""
        for block_id, host_id in orders.blocks_to_swap_out:
            self._host_blocks.pop(host_id, None)
            if block_id in self._blocks:
                self._host_blocks[host_id] = self._blocks[block_id]
        arriving = frozenset(block_id for _, block_id in orders.blocks_to_swap_in)
        self._arriving = (*self._arriving[1:], arriving)
        self.drop(arriving)
        for host_id, block_id in orders.blocks_to_swap_in:
            if (entry := self._host_blocks.pop(host_id, None)) is not None:
                self.add(CachedBlock(block_id, *entry))
        # Copied to be written.
        self.drop(block_id for _, block_id in orders.blocks_to_copy)

    def discard(self, orders: SchedulerOutputs) -> None:
        """Drop what a step that failed may have moved in part, or not at all."""
        for _, host_id in orders.blocks_to_swap_out:
            self._host_blocks.pop(host_id, None)
        self.drop(block_id for _, block_id in orders.blocks_to_swap_in)
        self.drop(block_id for _, block_id in orders.blocks_to_copy)

    def clear(self) -> None:
        """Drop everything."""
        self._blocks.clear()
        self._host_blocks.clear()
        self._block_of.clear()


def _listed(blocks: dict[int, Entry]) -> tuple[CachedBlock, ...]:
    return tuple(CachedBlock(block_id, *entry) for block_id, entry in blocks.items())
