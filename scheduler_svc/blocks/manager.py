"""Block tables of the running sequences over one BlockAllocator."""

from collections import Counter
from collections.abc import Iterable, KeysView, Mapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from quire.contract.workers import CachedBlock
from scheduler_svc.blocks.allocator import BlockAllocator
from scheduler_svc.blocks.prefix_digest import PrefixDigest


class AllocStatus(Enum):
    """Whether a sequence gets its blocks now, once others have ended, or never in this cache."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class AppendedSlots(NamedTuple):
    """What changed in a block table.

    Attributes:
        new_block_ids: appended at its end.
        copies: (source, destination) of blocks that were shared: the sequence has its own now. The
            contents must be copied, in this order, before anything is written.
        first_copied: place of the first of them in the table; the others follow.
    """

    new_block_ids: list[int]
    copies: list[tuple[int, int]]
    first_copied: int


class BlockSpaceManager:
    """Maps the tokens of each sequence to blocks of `block_size` slots.

    Token i of a sequence lives in slot `i % block_size` of block `table[i // block_size]`.
    A block is referenced once for each table that holds it. A sequence writes only to blocks that
    it alone references: a shared one is copied first (copy-on-write).

    Args:
        block_size: slots of a block.
        num_blocks: blocks of the cache.
        watermark: share of the cache, in [0, 1), that must stay free when a group starts, so that
            it does not force a preemption in the very next steps.
        num_host_blocks: blocks in the host's memory, for sequences that are swapped out.
    """

    def __init__(
        self, block_size: int, num_blocks: int, watermark: float = 0.01, num_host_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self.allocator = BlockAllocator(num_blocks)
        self._ref_counts = self.allocator.ref_counts
        self._watermark = watermark
        self._watermark_blocks = int(watermark * num_blocks)
        self._tables: dict[int, list[int]] = {}
        self._host_allocator = BlockAllocator(num_host_blocks)
        self._host_tables: dict[int, list[int]] = {}
        self.reserved: set[int] = set()  # blocks in use by no sequence, see blocks/reserved.py

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache, free or not."""
        return self.allocator.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self.allocator.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that keep a prefix, which can still be found."""
        return self.allocator.num_cached

    @property
    def num_blocks_saved(self) -> int:
        """Blocks that would be needed beyond those in use if no sequence shared any."""
        return self.allocator.num_saved

    @property
    def num_host_blocks(self) -> int:
        """Blocks in the host's memory, free or not."""
        return self._host_allocator.num_blocks

    @property
    def num_free_host_blocks(self) -> int:
        """Blocks in the host's memory that no swapped sequence holds."""
        return self._host_allocator.num_free

    @property
    def num_slots(self) -> int:
        """Tokens that fit into the whole cache."""
        return self.num_blocks * self.block_size

    @property
    def sequence_ids(self) -> KeysView[int]:
        """Sequences that have a block table."""
        return self._tables.keys()

    @property
    def swapped_sequence_ids(self) -> KeysView[int]:
        """Sequences whose blocks are in the host's memory."""
        return self._host_tables.keys()

    def block_table(self, sequence_id: int) -> AbstractSequence[int]:
        """Return the blocks of a sequence in order of its tokens; a live view, not a copy."""
        return self._tables[sequence_id]

    def can_find(self, block_hash: bytes) -> bool:
        """Return whether a block of this hash is published."""
        return self.allocator.find(block_hash) is not None

    def find_prefix(self, block_hashes: AbstractSequence[bytes]) -> list[int]:
        """Return the blocks that hold the longest published prefix.

        Args:
            block_hashes: of the first blocks of a sequence, see `prefix_cache`.
        """
        block_ids = []
        for content_hash in block_hashes:
            block_id = self.allocator.find(content_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def can_allocate(
        self, num_tokens: int, prefix: AbstractSequence[int] = (), num_more_blocks: int = 0
    ) -> AllocStatus:
        """Return whether a sequence of `num_tokens` may start.

        The watermark protects sequences that run. In an empty cache there is none to protect, so
        that one sequence may have all of it.

        Args:
            num_tokens: of the sequence.
            prefix: blocks from `find_prefix` that it will share.
            num_more_blocks: that the other sequences of its group need.
        """
        num_needed = self.num_blocks_for(num_tokens) + num_more_blocks
        if num_needed > self.num_blocks:
            return AllocStatus.NEVER
        # A shared block needs no free one, unless it is free itself.
        num_needed -= sum(self._ref_counts[block_id] > 0 for block_id in prefix)
        num_kept = self._watermark_blocks if self._tables else 0
        if num_needed + num_kept > self.num_free_blocks:
            return AllocStatus.LATER
        return AllocStatus.OK

    def allocate(
        self, sequence_id: int, num_tokens: int, prefix: AbstractSequence[int] = ()
    ) -> None:
        """Give a new sequence blocks for `num_tokens`; `can_allocate` must have returned OK.

        Args:
            sequence_id: has no blocks yet.
            num_tokens: of the sequence.
            prefix: blocks from `find_prefix`, which its table begins with.
        """
        assert sequence_id not in self._tables, f"sequence {sequence_id} has blocks already"
        # The whole prefix first: a new block might else take the place of one of its blocks.
        for block_id in prefix:
            self.allocator.reuse(block_id)
        blocks = range(len(prefix), self.num_blocks_for(num_tokens))
        self._tables[sequence_id] = [*prefix, *(self.allocator.allocate() for _ in blocks)]

    def publish(self, sequence_id: int, index: int, content_hash: bytes) -> None:
        """Let other sequences find a full block, the one at `index` of a sequence's table."""
        self.allocator.publish(self._tables[sequence_id][index], content_hash, index + 1)

    def withdraw(self, sequence_id: int) -> None:
        """Let nothing be found any more of what a sequence's blocks hold."""
        for block_id in self._tables[sequence_id]:
            self.allocator.withdraw(block_id)

    def adopt(
        self, blocks: Iterable[CachedBlock], host_blocks: AbstractSequence[CachedBlock] = ()
    ) -> list[tuple[int, int]]:
        """Publish what free blocks hold from before, and blocks of the host that have room beside.

        Args:
            blocks: none of them and no hash is there twice, or published; as for `host_blocks`,
                the least recently used first.
            host_blocks: which hold contents that no block of the cache has.

        Returns:
            (host block, device block) pairs to copy before anything is swapped out.
        """
        allocator = self.allocator
        allocator.adopt(blocks)
        num_unused = len(allocator.unused)
        # Those used last, if not all fit.
        fitting = host_blocks[max(0, len(host_blocks) - num_unused) :]
        pairs = list(zip((block.block_id for block in fitting), allocator.unused, strict=False))
        allocator.adopt(
            replace(block, block_id=block_id)
            for block, (_, block_id) in zip(fitting, pairs, strict=True)
        )
        return pairs

    @property
    def digest(self) -> PrefixDigest:
        """Which prefixes can be found, as reported to routers."""
        return self.allocator.digest

    def forget_contents(self) -> None:
        """Forget all published prefixes: the workers' caches are new."""
        self.allocator.forget_contents()

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def has_slots(self, sequence_id: int, start: int, end: int) -> bool:
        """Return whether slots [start, end) of a sequence exist and are its own."""
        table = self._tables[sequence_id]
        if end > len(table) * self.block_size:
            return False
        # All blocks after one that a sequence wrote to are its own.
        return self._ref_counts[table[start // self.block_size]] == 1

    def num_blocks_to_append(self, ranges: AbstractSequence[tuple[int, int, int]]) -> int:
        """Return how many free blocks `append_slots` takes for sequences of one group together.

        Args:
            ranges: (sequence id, start, end) of each, as for `append_slots`.
        """
        num_needed = 0
        writers: dict[int, int] = {}
        for sequence_id, start, end in ranges:
            table = self._tables[sequence_id]
            first, end_block = start // self.block_size, self.num_blocks_for(end)
            if first < len(table) and self._ref_counts[table[first]] > 1:
                for block_id in table[first:end_block]:
                    writers[block_id] = writers.get(block_id, 0) + 1
            num_needed += max(0, end_block - len(table))
        for block_id, num_writers in writers.items():
            # If all that share a block write to it, the last one needs no copy.
            num_needed += min(num_writers, self._ref_counts[block_id] - 1)
        return num_needed

    def append_slots(self, sequence_id: int, start: int, end: int) -> AppendedSlots:
        """Make slots [start, end) of a sequence exist and be its own.

        Copies shared blocks that hold any of these slots, then appends blocks up to `end`.
        `num_blocks_to_append` blocks must be free.

        Mutates: the block table, in place.
        """
        table = self._tables[sequence_id]
        first, end_block = start // self.block_size, self.num_blocks_for(end)
        copies = []
        # Shared blocks come first: all blocks after one that a sequence wrote to are its own.
        for index in range(first, min(len(table), end_block)):
            shared = table[index]
            if self._ref_counts[shared] > 1:
                table[index] = self.allocator.allocate()
                self.allocator.free(shared)
                copies.append((shared, table[index]))
        new_block_ids = [self.allocator.allocate() for _ in range(len(table), end_block)]
        table.extend(new_block_ids)
        return AppendedSlots(new_block_ids, copies, first)

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """Let a new sequence share the blocks that hold the first `num_tokens` of `parent_id`."""
        assert child_id not in self._tables, f"sequence {child_id} has blocks already"
        table = self._tables[parent_id][: self.num_blocks_for(num_tokens)]
        for block_id in table:
            self.allocator.fork(block_id)
        self._tables[child_id] = table

    def free(self, sequence_id: int) -> None:
        """Drop a sequence's table; blocks that no other sequence holds become free."""
        # Last block first: the stack of free blocks then hands them out in ascending order, and the
        # end of a published prefix is reused before its beginning.
        for block_id in reversed(self._tables.pop(sequence_id)):
            self.allocator.free(block_id)

    # ------------------------------------------------------------------ host memory

    def set_num_blocks(self, num_blocks: int) -> None:
        """Change the number of blocks of the cache, which is new. No sequence may be there."""
        assert not self._tables, "sequences are in the cache"
        self.forget_contents()
        self.allocator = BlockAllocator(num_blocks, self.allocator.digest)
        self._ref_counts = self.allocator.ref_counts
        self._watermark_blocks = int(self._watermark * num_blocks)

    def set_num_host_blocks(self, num_host_blocks: int) -> None:
        """Change the number of blocks in the host's memory. No sequence may be there."""
        assert not self._host_tables, "sequences are on the host"
        self._host_allocator = BlockAllocator(num_host_blocks)

    def num_blocks_held(self, lengths: Mapping[int, int]) -> int:
        """Return how many distinct blocks hold the first tokens of sequences.

        Args:
            lengths: how many tokens, by sequence id.
        """
        return len(self._distinct_blocks(lengths))

    def swap_out(self, lengths: Mapping[int, int]) -> list[tuple[int, int]]:
        """Move sequences to the host's memory; what they share stays shared. They must fit.

        Args:
            lengths: tokens to keep, by sequence id.

        Returns:
            (device block, host block) pairs to copy before anything else is written.
        """
        moved = {block: self._host_allocator.allocate() for block in self._distinct_blocks(lengths)}
        self._host_tables |= self._moved_tables(self._tables, lengths, moved, self._host_allocator)
        for sequence_id in lengths:
            self.free(sequence_id)
        return list(moved.items())

    def num_blocks_to_swap_in(self, sequence_ids: Iterable[int]) -> int:
        """Return how many blocks of the cache it takes to bring swapped sequences back."""
        return len({block for each in sequence_ids for block in self._host_tables[each]})

    def swap_in(self, sequence_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Move swapped sequences back into the cache. `num_blocks_to_swap_in` must be free.

        Returns:
            (host block, device block) pairs to copy after those of `swap_out`.
        """
        lengths = {each: len(self._host_tables[each]) * self.block_size for each in sequence_ids}
        blocks = dict.fromkeys(block for each in lengths for block in self._host_tables[each])
        moved = {block: self.allocator.allocate() for block in blocks}
        self._tables |= self._moved_tables(self._host_tables, lengths, moved, self.allocator)
        for sequence_id in lengths:
            self.free_host(sequence_id)
        return list(moved.items())

    def free_host(self, sequence_id: int) -> None:
        """Drop the table of a swapped sequence."""
        for block_id in self._host_tables.pop(sequence_id):
            self._host_allocator.free(block_id)

    def _distinct_blocks(self, lengths: Mapping[int, int]) -> dict[int, None]:
        """Return the blocks that hold the first tokens of sequences, each once, in order."""
        return dict.fromkeys(
            block
            for sequence_id, num_tokens in lengths.items()
            for block in self._tables[sequence_id][: self.num_blocks_for(num_tokens)]
        )

    def _moved_tables(
        self,
        tables: Mapping[int, list[int]],
        lengths: Mapping[int, int],
        moved: Mapping[int, int],
        allocator: BlockAllocator,
    ) -> dict[int, list[int]]:
        """Return the tables of moved sequences, and reference the blocks in them.

        Args:
            tables: the tables before.
            lengths: tokens that are moved, by sequence id.
            moved: new block by old block, each newly allocated.
            allocator: of the new blocks.
        """
        new_tables = {
            sequence_id: [
                moved[block] for block in tables[sequence_id][: self.num_blocks_for(length)]
            ]
            for sequence_id, length in lengths.items()
        }
        referenced = set[int]()  # `allocate` made one reference to each
        for block_id in (block for table in new_tables.values() for block in table):
            if block_id in referenced:
                allocator.fork(block_id)
            referenced.add(block_id)
        return new_tables

    def check_invariants(self) -> None:
        """Raise AssertionError unless reference counts and tables agree."""
        both = self._tables.keys() & self._host_tables.keys()
        assert not both, f"sequences {both} are in the cache and on the host"
        _check_references(self.allocator, self._tables | {-1: list(self.reserved)})
        _check_references(self._host_allocator, self._host_tables)


def _check_references(allocator: BlockAllocator, tables: Mapping[int, list[int]]) -> None:
    allocator.check_invariants()
    references: Counter[int] = Counter()
    for sequence_id, table in tables.items():
        assert len(set(table)) == len(table), f"sequence {sequence_id} holds a block twice"
        references.update(table)
    for block_id, count in enumerate(allocator.ref_counts):
        assert count == references[block_id], (
            f"block {block_id} counts {count} references, tables hold {references[block_id]}"
        )
