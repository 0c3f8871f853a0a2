import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from quire.contract.block_hashes import extend_block_hashes, is_reported_depth, short_hash
from scheduler_svc.blocks.allocator import BlockAllocator
from scheduler_svc.blocks.manager import AllocStatus, AppendedSlots, BlockSpaceManager


def test_allocator_hands_out_each_block_once() -> None:
    allocator = BlockAllocator(3)
    blocks = [allocator.allocate() for _ in range(3)]
    assert sorted(blocks) == [0, 1, 2]
    assert allocator.num_free == 0
    allocator.check_invariants()


def test_allocator_frees_a_block_with_its_last_reference() -> None:
    allocator = BlockAllocator(1)
    block = allocator.allocate()
    allocator.fork(block)
    allocator.free(block)
    assert (allocator.num_free, allocator.ref_counts[block]) == (0, 1)
    allocator.free(block)
    assert (allocator.num_free, allocator.ref_counts[block]) == (1, 0)
    allocator.check_invariants()


def test_allocator_refuses_misuse() -> None:
    allocator = BlockAllocator(1)
    with pytest.raises(AssertionError, match="double free"):
        allocator.free(0)
    with pytest.raises(AssertionError, match="fork of free"):
        allocator.fork(0)
    allocator.allocate()
    with pytest.raises(AssertionError, match="no free block"):
        allocator.allocate()


def test_check_invariants_notices_a_leaked_block() -> None:
    allocator = BlockAllocator(2)
    allocator._free.pop()
    with pytest.raises(AssertionError, match="differ"):
        allocator.check_invariants()


def test_check_invariants_notices_a_lost_table() -> None:
    manager = BlockSpaceManager(4, 4)
    manager.allocate(1, 5)
    del manager._tables[1]
    with pytest.raises(AssertionError, match="references"):
        manager.check_invariants()


def test_can_allocate_ok_later_never() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=4, watermark=0.0)
    assert manager.can_allocate(16) is AllocStatus.OK
    assert manager.can_allocate(17) is AllocStatus.NEVER
    manager.allocate(1, 9)
    assert manager.num_free_blocks == 1
    assert manager.can_allocate(4) is AllocStatus.OK
    assert manager.can_allocate(5) is AllocStatus.LATER


def test_watermark_holds_blocks_back_only_while_others_run() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=10, watermark=0.2)
    assert manager.can_allocate(40) is AllocStatus.OK
    manager.allocate(1, 4)
    assert manager.can_allocate(4 * 7) is AllocStatus.OK
    assert manager.can_allocate(4 * 7 + 1) is AllocStatus.LATER


def test_append_takes_a_block_only_at_a_boundary() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=4)
    manager.allocate(1, 3)
    assert manager.num_blocks_to_append([(1, 3, 4)]) == 0
    assert manager.append_slots(1, 3, 4) == AppendedSlots([], [], 0)
    assert manager.num_blocks_to_append([(1, 4, 5)]) == 1
    slots = manager.append_slots(1, 4, 5)
    assert list(manager.block_table(1))[1:] == slots.new_block_ids
    assert slots.copies == []
    manager.check_invariants()


def test_append_to_a_shared_last_block_copies_it() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=4)
    manager.allocate(1, 6)
    manager.fork(1, 2, 6)
    first, shared = manager.block_table(1)
    assert manager.num_blocks_to_append([(2, 6, 7)]) == 1
    slots = manager.append_slots(2, 6, 7)
    (copy,) = slots.copies
    assert copy == (shared, manager.block_table(2)[1])
    assert list(manager.block_table(2)) == [first, copy[1]]
    assert list(manager.block_table(1)) == [first, shared]
    # The parent is the only owner again, so that it writes in place.
    assert manager.num_blocks_to_append([(1, 6, 7)]) == 0
    manager.check_invariants()


def test_append_after_a_full_shared_block_copies_nothing() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=4)
    manager.allocate(1, 4)
    manager.fork(1, 2, 6)
    slots = manager.append_slots(2, 4, 5)
    assert slots.copies == []
    assert manager.block_table(1)[0] == manager.block_table(2)[0]
    manager.check_invariants()


def test_what_sequences_share_is_moved_once_and_stays_shared() -> None:
    manager = BlockSpaceManager(4, num_blocks=6, num_host_blocks=6)
    manager.allocate(1, 10)
    manager.fork(1, 2, 10)
    manager.append_slots(2, 10, 11)
    assert len(manager.swap_out({1: 10, 2: 11})) == 4
    assert manager.num_free_blocks == 6
    assert manager.num_free_host_blocks == 2
    manager.check_invariants()
    assert manager.num_blocks_to_swap_in([1, 2]) == 4
    assert len(manager.swap_in([1, 2])) == 4
    assert list(manager.block_table(1))[:2] == list(manager.block_table(2))[:2]
    assert manager.num_free_host_blocks == 6
    manager.check_invariants()


def test_freed_blocks_of_a_fork_stay_with_the_other() -> None:
    manager = BlockSpaceManager(block_size=4, num_blocks=4)
    manager.allocate(1, 8)
    manager.fork(1, 2, 6)
    manager.free(1)
    assert manager.num_free_blocks == 2
    manager.check_invariants()
    manager.free(2)
    assert manager.num_free_blocks == 4
    assert not manager.sequence_ids


BLOCK_SIZE = 4
NUM_BLOCKS = 24
NUM_HOST_BLOCKS = 20


def hashes_of(contents: list[int]) -> list[bytes]:
    """Hash stamps as if they were tokens."""
    hashes: list[bytes] = []
    extend_block_hashes(hashes, contents, BLOCK_SIZE, len(contents) // BLOCK_SIZE)
    return hashes


class BlockManagerMachine(RuleBasedStateMachine):
    """The manager against a model that keeps every sequence's contents in full.

    Each write stamps its slot; a sequence must always read back exactly what was written through
    it or inherited by a fork or from a published prefix, in use or free. Sharing, copies, frees and
    evictions that go wrong show up as foreign stamps.
    """

    sequences = Bundle("sequences")
    swapped = Bundle("swapped")

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockSpaceManager(BLOCK_SIZE, NUM_BLOCKS, 0.1, NUM_HOST_BLOCKS)
        self.swapped_contents: dict[int, list[int]] = {}
        self.host_cache = [[-1] * BLOCK_SIZE for _ in range(NUM_HOST_BLOCKS)]
        self.contents: dict[int, list[int]] = {}
        self.cache = [[-1] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.next_id = 0
        self.next_stamp = 0
        # Contents of full blocks that were published once; some have been evicted since.
        self.published: list[list[int]] = []
        # What a router knows that received every change.
        self.reported: set[int] = set()

    def write(self, sequence_id: int, num_tokens: int) -> None:
        contents = self.contents[sequence_id]
        for _ in range(num_tokens):
            position = len(contents)
            block = self.manager.block_table(sequence_id)[position // BLOCK_SIZE]
            self.cache[block][position % BLOCK_SIZE] = self.next_stamp
            contents.append(self.next_stamp)
            self.next_stamp += 1

    @rule(target=sequences, num_tokens=st.integers(1, 120))
    def allocate(self, num_tokens: int) -> "int | MultipleResults[int]":
        needed = -(-num_tokens // BLOCK_SIZE)
        kept = int(0.1 * NUM_BLOCKS) if self.contents else 0
        status = self.manager.can_allocate(num_tokens)
        if needed > NUM_BLOCKS:
            assert status is AllocStatus.NEVER
        elif needed + kept > self.num_free_in_model():
            assert status is AllocStatus.LATER
        else:
            assert status is AllocStatus.OK
            sequence_id, self.next_id = self.next_id, self.next_id + 1
            self.manager.allocate(sequence_id, num_tokens)
            self.contents[sequence_id] = []
            self.write(sequence_id, num_tokens)
            return sequence_id
        return multiple()

    @rule(sequence_id=sequences)
    def publish(self, sequence_id: int) -> None:
        contents = self.contents[sequence_id]
        num_full = len(contents) // BLOCK_SIZE
        for index, content_hash in enumerate(hashes_of(contents[: num_full * BLOCK_SIZE])):
            self.manager.publish(sequence_id, index, content_hash)
        self.published.append(contents[: num_full * BLOCK_SIZE])

    @rule(target=sequences, data=st.data(), num_tokens=st.integers(1, 20))
    def allocate_with_prefix(
        self, data: st.DataObject, num_tokens: int
    ) -> "int | MultipleResults[int]":
        if not self.published:
            return multiple()
        contents = data.draw(st.sampled_from(self.published))
        prefix = self.manager.find_prefix(hashes_of(contents))
        total = len(prefix) * BLOCK_SIZE + num_tokens
        if self.manager.can_allocate(total, prefix) is not AllocStatus.OK:
            return multiple()
        sequence_id, self.next_id = self.next_id, self.next_id + 1
        self.manager.allocate(sequence_id, total, prefix)
        self.contents[sequence_id] = contents[: len(prefix) * BLOCK_SIZE]
        self.write(sequence_id, num_tokens)
        return sequence_id

    @rule(sequence_id=sequences, num_tokens=st.integers(1, 9))
    def append(self, sequence_id: int, num_tokens: int) -> None:
        start = len(self.contents[sequence_id])
        end = start + num_tokens
        needed = self.manager.num_blocks_to_append([(sequence_id, start, end)])
        free = self.manager.num_free_blocks
        if needed > free:
            return
        slots = self.manager.append_slots(sequence_id, start, end)
        assert len(slots.copies) + len(slots.new_block_ids) == needed
        assert self.manager.num_free_blocks == free - needed
        for source, destination in slots.copies:
            self.cache[destination] = list(self.cache[source])
        self.write(sequence_id, num_tokens)

    @rule(target=sequences, parent_id=sequences)
    def fork(self, parent_id: int) -> int:
        child_id, self.next_id = self.next_id, self.next_id + 1
        self.manager.fork(parent_id, child_id, len(self.contents[parent_id]))
        self.contents[child_id] = list(self.contents[parent_id])
        return child_id

    @rule(target=swapped, first=consumes(sequences), data=st.data())
    def swap_out(self, first: int, data: st.DataObject) -> "int | MultipleResults[int]":
        num_tokens = data.draw(st.integers(1, len(self.contents[first])))
        lengths = {first: num_tokens}
        num_blocks = self.manager.num_blocks_held(lengths)
        assert num_blocks == -(-num_tokens // BLOCK_SIZE)
        if num_blocks > self.manager.num_free_host_blocks:
            self.free(first)
            return multiple()
        for device, host in self.manager.swap_out(lengths):
            self.host_cache[host] = list(self.cache[device])
        self.swapped_contents[first] = self.contents.pop(first)[:num_tokens]
        return first

    @rule(target=sequences, sequence_id=consumes(swapped))
    def swap_in(self, sequence_id: int) -> "int | MultipleResults[int]":
        if self.manager.num_blocks_to_swap_in([sequence_id]) > self.manager.num_free_blocks:
            self.manager.free_host(sequence_id)
            del self.swapped_contents[sequence_id]
            return multiple()
        for host, device in self.manager.swap_in([sequence_id]):
            self.cache[device] = list(self.host_cache[host])
        self.contents[sequence_id] = self.swapped_contents.pop(sequence_id)
        return sequence_id

    @rule(sequence_id=consumes(sequences))
    def free(self, sequence_id: int) -> None:
        del self.contents[sequence_id]
        self.manager.free(sequence_id)

    @rule()
    def lose_the_workers(self) -> None:
        if not self.contents:
            self.manager.forget_contents()
            assert not self.manager.digest.keys

    @rule()
    def report_to_a_router(self) -> None:
        delta = self.manager.digest.take_delta()
        assert self.reported.isdisjoint(delta.added)
        assert self.reported.issuperset(delta.removed)
        self.reported = (self.reported - set(delta.removed)) | set(delta.added)
        assert self.reported == self.findable()

    def findable(self) -> set[int]:
        """Short hashes of all blocks at reported depths that can be found now."""
        return {
            short_hash(content_hash)
            for contents in self.published
            for depth, content_hash in enumerate(hashes_of(contents), 1)
            if is_reported_depth(depth) and self.manager.can_find(content_hash)
        }

    @invariant()
    def the_digest_is_what_can_be_found(self) -> None:
        assert self.manager.digest.keys == self.findable()

    def num_free_in_model(self) -> int:
        held = {b for s in self.contents for b in self.manager.block_table(s)}
        return NUM_BLOCKS - len(held)

    @invariant()
    def counts_are_right(self) -> None:
        self.manager.check_invariants()
        assert self.manager.sequence_ids == self.contents.keys()
        assert self.manager.swapped_sequence_ids == self.swapped_contents.keys()
        assert self.manager.num_free_blocks == self.num_free_in_model()

    @invariant()
    def every_sequence_reads_its_own_contents(self) -> None:
        for sequence_id, contents in self.contents.items():
            table = self.manager.block_table(sequence_id)
            assert len(table) == -(-len(contents) // BLOCK_SIZE)
            stored = [
                self.cache[table[i // BLOCK_SIZE]][i % BLOCK_SIZE] for i in range(len(contents))
            ]
            assert stored == contents

    def teardown(self) -> None:
        for sequence_id in list(self.contents):
            self.manager.free(sequence_id)
        for sequence_id in list(self.swapped_contents):
            self.manager.free_host(sequence_id)
        assert self.manager.num_free_host_blocks == NUM_HOST_BLOCKS
        assert self.manager.num_free_blocks == NUM_BLOCKS
        self.manager.check_invariants()


# 250 runs of up to 50 operations: more than 10,000 in all.
BlockManagerMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=50, database=None
)
TestBlockManagerMachine = BlockManagerMachine.TestCase
