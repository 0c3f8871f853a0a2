"""Physical blocks of the cache: which are free, how often others are referenced, what they hold."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.contract.block_hashes import short_hash
from quire.contract.workers import CachedBlock
from scheduler_svc.blocks.prefix_digest import PrefixDigest


class BlockAllocator:
    """Hands out blocks, counts their references and takes them back when the last one goes.

    A full block may be published under a hash of its contents and of all that came before them.
    It keeps its contents after its last reference has gone, until the block is needed: blocks
    without contents are handed out first, then published ones, the least recently freed first.

    Invariant: a block is free exactly when its reference count is 0.

    Args:
        num_blocks: block ids are in [0, num_blocks).
        digest: to go on with, of an allocator without contents; None for a new one.

    Attributes:
        ref_counts: how many block tables hold each block; only to be read.
        num_saved: blocks that would be needed beyond those in use if none were shared.
        digest: of the contents that can be found.
    """

    def __init__(self, num_blocks: int, digest: PrefixDigest | None = None) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is handed out first, while it may still be in a CPU cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self.ref_counts = [0] * num_blocks
        self.num_saved = 0
        # Free blocks that are published, in the order in which they became free.
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self.digest = digest or PrefixDigest()

    @property
    def num_free(self) -> int:
        """Blocks that no table references."""
        return len(self._free) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents can still be found."""
        return len(self._evictable)

    def allocate(self) -> int:
        """Take a free block; the caller holds its only reference. There must be one."""
        if self._free:
            block_id = self._free.pop()
        else:
            assert self._evictable, "no free block: the caller checks num_free first"
            block_id, _ = self._evictable.popitem(last=False)
            content_hash = self._hash_of.pop(block_id)
            del self._block_of[content_hash]
            self.digest.remove(content_hash)
        self.ref_counts[block_id] = 1
        return block_id

    def fork(self, block_id: int) -> None:
        """Add a reference to a block in use."""
        assert self.ref_counts[block_id] > 0, f"fork of free block {block_id}"
        self.ref_counts[block_id] += 1
        self.num_saved += 1

    def free(self, block_id: int) -> None:
        """Drop one reference; the last one makes the block free."""
        assert self.ref_counts[block_id] > 0, f"double free of block {block_id}"
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] > 0:
            self.num_saved -= 1
        elif block_id in self._hash_of:
            self._evictable[block_id] = None
        else:
            self._free.append(block_id)

    # ------------------------------------------------------------------ contents

    def publish(self, block_id: int, content_hash: bytes, depth: int) -> None:
        """Let the contents of a block in use be found; no effect if they already can.

        Args:
            block_id: the block.
            content_hash: of its contents and of all that came before them.
            depth: its place among them, 1 for the first.
        """
        assert self.ref_counts[block_id] > 0, f"publishing free block {block_id}"
        if content_hash not in self._block_of and block_id not in self._hash_of:
            self._block_of[content_hash] = block_id
            self._hash_of[block_id] = content_hash
            self.digest.add(content_hash, depth)

    def withdraw(self, block_id: int) -> None:
        """Let the contents of a block in use be found no more."""
        content_hash = self._hash_of.pop(block_id, None)
        if content_hash is not None:
            del self._block_of[content_hash]
            self.digest.remove(content_hash)

    def find(self, content_hash: bytes) -> int | None:
        """Return the block that holds these contents, in use or free."""
        return self._block_of.get(content_hash)

    def reuse(self, block_id: int) -> None:
        """Add a reference to a block that `find` returned."""
        if self.ref_counts[block_id] > 0:
            self.fork(block_id)
        else:
            del self._evictable[block_id]
            self.ref_counts[block_id] = 1

    @property
    def unused(self) -> Sequence[int]:
        """Free blocks without contents; a live view, not a copy."""
        return self._free

    def adopt(self, blocks: Iterable[CachedBlock]) -> None:
        """Let contents of unused blocks be found, which they have from before.

        Args:
            blocks: the least recently used first; none of them, and no digest, is there twice.
        """
        unused = dict.fromkeys(self._free)
        for block in blocks:
            del unused[block.block_id]
            assert block.digest not in self._block_of, "contents are adopted twice"
            self._evictable[block.block_id] = None
            self._block_of[block.digest] = block.block_id
            self._hash_of[block.block_id] = block.digest
            self.digest.add(block.digest, block.depth)
        self._free = list(unused)

    def forget_contents(self) -> None:
        """Forget all published contents: the caches are new."""
        self._free.extend(self._evictable)
        self._evictable.clear()
        self._hash_of.clear()
        self._block_of.clear()
        self.digest.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError unless lists, counts and published contents agree."""
        free = [*self._free, *self._evictable]
        assert len(set(free)) == len(free), "a block is in the free list twice"
        unreferenced = {block for block, count in enumerate(self.ref_counts) if count == 0}
        differing = set(free) ^ unreferenced
        assert not differing, f"free list and counts differ: {differing}"
        num_saved = sum(count - 1 for count in self.ref_counts if count > 1)
        assert self.num_saved == num_saved, f"{self.num_saved} counted as saved, not {num_saved}"
        assert self._evictable.keys() <= self._hash_of.keys(), "kept without contents"
        assert not self._hash_of.keys() & set(self._free), "contents in a block without any"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "contents disagree"
        findable = set(map(short_hash, self._block_of))
        assert self.digest.keys <= findable, "the digest has contents that cannot be found"
