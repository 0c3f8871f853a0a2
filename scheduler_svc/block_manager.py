"""Block tables of the running sequences over one BlockAllocator."""

from collections import Counter
from collections.abc import KeysView
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from enum import Enum, auto

from scheduler_svc.block_allocator import BlockAllocator


class AllocStatus(Enum):
    """Whether a sequence can have its blocks: now, once others finish, or not in this cache."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class AppendedSlots:
    """What changed in a block table.

    Attributes:
        new_block_ids: appended at its end.
        copies: (source, destination) of blocks that were shared and are this sequence's own now;
            the contents must be copied, in this order, before anything is written.
    """

    new_block_ids: list[int]
    copies: list[tuple[int, int]]


class BlockSpaceManager:
    """Maps the tokens of each sequence to blocks of `block_size` slots.

    Token i of a sequence lives in slot `i % block_size` of block `table[i // block_size]`.
    A block is referenced once for each table that holds it. A sequence writes only to blocks that
    it alone references: a shared one is copied first (copy-on-write).

    Args:
        block_size: slots of a block.
        num_blocks: blocks of the cache.
        watermark: share of the cache, in [0, 1), that admission leaves free, so that a newcomer
            does not force a preemption in the very next steps.
    """

    def __init__(self, block_size: int, num_blocks: int, watermark: float = 0.01) -> None:
        self.block_size = block_size
        self._allocator = BlockAllocator(num_blocks)
        self._ref_counts = self._allocator.ref_counts
        self._watermark_blocks = int(watermark * num_blocks)
        self._tables: dict[int, list[int]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache, free or not."""
        return self._allocator.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._allocator.num_free

    @property
    def num_slots(self) -> int:
        """Tokens that fit into the whole cache."""
        return self.num_blocks * self.block_size

    @property
    def sequence_ids(self) -> KeysView[int]:
        """Sequences that have a block table."""
        return self._tables.keys()

    def block_table(self, sequence_id: int) -> AbstractSequence[int]:
        """Return the blocks of a sequence in order of its tokens; a live view, not a copy."""
        return self._tables[sequence_id]

    def find_prefix(self, block_hashes: AbstractSequence[bytes]) -> list[int]:
        """Return the blocks that hold the longest published prefix.

        Args:
            block_hashes: of the first blocks of a sequence, see `prefix_cache`.
        """
        block_ids = []
        for content_hash in block_hashes:
            block_id = self._allocator.find(content_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def can_allocate(self, num_tokens: int, prefix: AbstractSequence[int] = ()) -> AllocStatus:
        """Say whether a sequence of `num_tokens` may be admitted.

        The watermark protects sequences that run: in an empty cache there is nobody to protect, so
        that one sequence may have all of it.

        Args:
            num_tokens: of the sequence.
            prefix: blocks from `find_prefix` that it will share.
        """
        num_needed = self._blocks_for(num_tokens)
        if num_needed > self.num_blocks:
            return AllocStatus.NEVER
        # Shared blocks need no place of their own, but free ones among them stop being free.
        num_needed -= sum(self._ref_counts[block_id] > 0 for block_id in prefix)
        num_kept = self._watermark_blocks if self._tables else 0
        if num_needed + num_kept > self.num_free_blocks:
            return AllocStatus.LATER
        return AllocStatus.OK

    def allocate(
        self, sequence_id: int, num_tokens: int, prefix: AbstractSequence[int] = ()
    ) -> None:
        """Give a new sequence blocks for `num_tokens`; `can_allocate` must have said OK.

        Args:
            sequence_id: has no blocks yet.
            num_tokens: of the sequence.
            prefix: blocks from `find_prefix`, which its table begins with.
        """
        assert sequence_id not in self._tables, f"sequence {sequence_id} has blocks already"
        # All of the prefix before any new block, which might else take the place of one of them.
        for block_id in prefix:
            self._allocator.reuse(block_id)
        blocks = range(len(prefix), self._blocks_for(num_tokens))
        self._tables[sequence_id] = [*prefix, *(self._allocator.allocate() for _ in blocks)]

    def publish(self, sequence_id: int, index: int, content_hash: bytes) -> None:
        """Let others find a full block of a sequence, the one at `index` of its table."""
        self._allocator.publish(self._tables[sequence_id][index], content_hash)

    def forget_contents(self) -> None:
        """No prefix can be found any more: the workers' caches are new."""
        self._allocator.forget_contents()

    def num_blocks_to_append(self, sequence_id: int, start: int, end: int) -> int:
        """Return how many free blocks `append_slots` with these arguments will take."""
        table = self._tables[sequence_id]
        first, last = start // self.block_size, (end - 1) // self.block_size
        if first == last < len(table):  # decoding, nearly always
            return 1 if self._ref_counts[table[first]] > 1 else 0
        num_shared = sum(self._ref_counts[block] > 1 for block in table[first : last + 1])
        return num_shared + max(0, last + 1 - len(table))

    def append_slots(self, sequence_id: int, start: int, end: int) -> AppendedSlots:
        """Make slots [start, end) of a sequence exist and be its own.

        Copies shared blocks that hold any of these slots, then appends blocks up to `end`.
        `num_blocks_to_append` blocks must be free.

        Mutates: the block table, in place.
        """
        table = self._tables[sequence_id]
        end_block = self._blocks_for(end)
        copies = []
        for index in range(start // self.block_size, min(len(table), end_block)):
            shared = table[index]
            if self._ref_counts[shared] > 1:
                table[index] = self._allocator.allocate()
                self._allocator.free(shared)
                copies.append((shared, table[index]))
        new_block_ids = [self._allocator.allocate() for _ in range(len(table), end_block)]
        table.extend(new_block_ids)
        return AppendedSlots(new_block_ids, copies)

    def fork(self, parent_id: int, child_id: int) -> None:
        """Let a new sequence share every block of `parent_id`."""
        assert child_id not in self._tables, f"sequence {child_id} has blocks already"
        table = self._tables[parent_id]
        for block_id in table:
            self._allocator.fork(block_id)
        self._tables[child_id] = list(table)

    def free(self, sequence_id: int) -> None:
        """Drop a sequence's table; blocks that no other sequence holds become free."""
        # Last block first: the stack of free blocks then hands them out in ascending order, and of
        # published ones the end of a prefix goes before its beginning.
        for block_id in reversed(self._tables.pop(sequence_id)):
            self._allocator.free(block_id)

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is referenced exactly as often as tables say."""
        self._allocator.check_invariants()
        references: Counter[int] = Counter()
        for sequence_id, table in self._tables.items():
            assert len(set(table)) == len(table), f"sequence {sequence_id} holds a block twice"
            references.update(table)
        for block_id in range(self.num_blocks):
            count = self._ref_counts[block_id]
            assert count == references[block_id], (
                f"block {block_id} counts {count} references, tables hold {references[block_id]}"
            )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
