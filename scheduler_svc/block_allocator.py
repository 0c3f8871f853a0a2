"""Physical blocks of the cache: which are free, and how often each other one is referenced."""


class BlockAllocator:
    """Hands out blocks, counts their references and takes them back when the last one goes.

    Invariant: a block is in the free list exactly when its reference count is 0.

    Args:
        num_blocks: block ids are in [0, num_blocks).

    Attributes:
        ref_counts: how many block tables hold each block; others only read it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is handed out first, while it may still be in a CPU cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self.ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody references."""
        return len(self._free)

    def allocate(self) -> int:
        """Take a free block; the caller holds its only reference. There must be one."""
        assert self._free, "no free block: the caller checks num_free first"
        block_id = self._free.pop()
        self.ref_counts[block_id] = 1
        return block_id

    def fork(self, block_id: int) -> None:
        """Add a reference to a block in use."""
        assert self.ref_counts[block_id] > 0, f"fork of free block {block_id}"
        self.ref_counts[block_id] += 1

    def free(self, block_id: int) -> None:
        """Drop one reference; the last one makes the block free."""
        assert self.ref_counts[block_id] > 0, f"double free of block {block_id}"
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            self._free.append(block_id)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the free list holds each unreferenced block once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        unreferenced = {block for block, count in enumerate(self.ref_counts) if count == 0}
        assert free == unreferenced, f"free list and counts differ: {free ^ unreferenced}"
