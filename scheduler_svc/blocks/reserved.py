"""Blocks that no sequence holds, for contents that come from elsewhere."""

from collections.abc import Sequence

from quire.contract.workers import CachedBlock
from scheduler_svc.blocks.manager import BlockSpaceManager


def reserve(
    blocks: BlockSpaceManager, hashes: Sequence[bytes], first_depth: int
) -> tuple[CachedBlock, ...]:
    """Take blocks for contents that are to come; as many must be free.

    Mutates: blocks.

    Args:
        blocks: of the cache.
        hashes: of the contents, which follow one another in a text.
        first_depth: place of the first of them there, 1 for the beginning.
    """
    reserved = tuple(
        CachedBlock(blocks.allocator.allocate(), depth, each)
        for depth, each in enumerate(hashes, first_depth)
    )
    blocks.reserved.update(block.block_id for block in reserved)
    return reserved


def give_back(blocks: BlockSpaceManager, reserved: Sequence[CachedBlock], num_filled: int) -> None:
    """Free reserved blocks; the contents of the first so many can be found.

    Mutates: blocks.
    """
    allocator = blocks.allocator
    # The last first: the beginning of a text is of use to more than its end.
    for index, block in reversed(list(enumerate(reserved))):
        if index < num_filled:
            allocator.publish(block.block_id, block.digest, block.depth)
        blocks.reserved.discard(block.block_id)
        allocator.free(block.block_id)
