"""Blocks of a prefix that was computed before are shared, and nothing else changes."""

import pytest

from quire.contract.block_hashes import extend_block_hashes
from scheduler_svc.blocks.allocator import BlockAllocator
from tests.unit.scheduler.factories import Cell, make_params, make_prompt, reference


def cached_cell(**options: int) -> Cell:
    return Cell(enable_prefix_caching=True, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is found


def test_the_same_prompt_again_computes_its_tail_alone() -> None:
    cell = cached_cell()
    prompt = make_prompt(11)
    first = cell.add(prompt, make_params(max_tokens=3))
    [state] = cell.step().new_sequences
    cell.run()
    second = cell.add(prompt, make_params(max_tokens=3))
    orders = cell.step()
    [again] = orders.new_sequences
    assert again.num_computed_tokens == 8
    assert again.block_ids[:2] == state.block_ids[:2]
    assert orders.num_scheduled_tokens == [3]
    cell.run()
    assert cell.tokens[first] == cell.tokens[second] == reference(prompt, max_tokens=3)
    assert cell.scheduler.prefix_cache.num_tokens_found == 8
    assert cell.scheduler.prefix_cache.num_tokens_looked_up == 22


def test_one_token_is_always_left_to_compute() -> None:
    cell = cached_cell()
    for expected in (8, 4):
        cell.add(make_prompt(8), make_params(max_tokens=1))
        assert cell.step().num_scheduled_tokens == [expected]


def test_sequences_that_run_share_blocks() -> None:
    cell = cached_cell(num_blocks=9)
    prompts = [[*make_prompt(12), last] for last in (1, 2, 3)]
    groups = [cell.add(prompt, make_params(max_tokens=8)) for prompt in prompts]
    cell.step()
    # Three blocks in common and one of their own: without sharing, there is room for two.
    assert len(cell.scheduler.queues.running) == 3
    assert cell.blocks.num_free_blocks == 9 - 3 - 3
    cell.run()
    for group_id, prompt in zip(groups, prompts, strict=True):
        assert cell.tokens[group_id] == reference(prompt, max_tokens=8)


def test_output_is_found_as_the_prompt_of_a_later_turn() -> None:
    cell = cached_cell()
    prompt = make_prompt(6)
    first = cell.add(prompt, make_params(max_tokens=10))
    cell.run()
    turn = [*prompt, *cell.tokens[first], 5, 6]
    second = cell.add(turn, make_params(max_tokens=4))
    # 15 of the 16 tokens of the first turn were computed: its last was only sampled.
    assert cell.step().new_sequences[0].num_computed_tokens == 12
    cell.run()
    assert cell.tokens[second] == reference(turn, max_tokens=4)


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    cell = cached_cell()
    cell.add([1, 2, 3, 4, 9, 9, 9, 9, 5], make_params(max_tokens=1))
    cell.run()
    cell.add([4, 3, 2, 1, 9, 9, 9, 9, 5], make_params(max_tokens=1))
    assert cell.step().new_sequences[0].num_computed_tokens == 0


def test_without_the_option_nothing_is_found() -> None:
    cell = Cell()
    for _ in range(2):
        cell.add(make_prompt(11), make_params(max_tokens=1))
        assert cell.step().new_sequences[0].num_computed_tokens == 0


# ---------------------------------------------------------------- what is lost


def test_kept_blocks_give_way_when_their_place_is_needed() -> None:
    cell = cached_cell(num_blocks=6)
    cell.add(make_prompt(12, 1), make_params(max_tokens=1))
    cell.run()
    assert cell.blocks.num_free_blocks == 6
    big = cell.add(make_prompt(20, 2), make_params(max_tokens=3))
    cell.run()
    assert cell.tokens[big] == reference(make_prompt(20, 2), max_tokens=3)
    cell.add(make_prompt(12, 1), make_params(max_tokens=1))
    [state] = cell.step().new_sequences
    assert state.num_computed_tokens < 8


def test_a_preempted_group_finds_blocks_that_were_not_taken() -> None:
    cell = cached_cell(num_blocks=4)
    first = cell.add(make_prompt(7, 1), make_params(max_tokens=6))
    second = cell.add(make_prompt(7, 2), make_params(max_tokens=6))
    cell.run()
    assert cell.scheduler.counters.preemptions == 1
    assert cell.scheduler.prefix_cache.num_tokens_found > 0
    assert cell.tokens[first] == reference(make_prompt(7, 1), max_tokens=6)
    assert cell.tokens[second] == reference(make_prompt(7, 2), max_tokens=6)


def test_workers_that_are_lost_take_the_cache_with_them() -> None:
    cell = cached_cell()
    prompt = make_prompt(11)
    group_id = cell.add(prompt, make_params(max_tokens=6))
    cell.step()
    cell.lose_workers()
    assert cell.step().new_sequences[0].num_computed_tokens == 0
    cell.run()
    assert cell.tokens[group_id] == reference(prompt, max_tokens=6)


# ---------------------------------------------------------------- allocator and hashes


def test_the_block_unused_for_longest_is_evicted_first() -> None:
    allocator = BlockAllocator(3)
    blocks = [allocator.allocate() for _ in range(3)]
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        allocator.publish(block, name, 1)
    for block in (blocks[1], blocks[0], blocks[2]):
        allocator.free(block)
    allocator.check_invariants()
    allocator.reuse(blocks[1])
    allocator.free(blocks[1])
    assert allocator.allocate() == blocks[0]
    assert allocator.find(b"a") is None
    assert allocator.find(b"b") == blocks[1]
    allocator.check_invariants()


def test_blocks_without_contents_go_first() -> None:
    allocator = BlockAllocator(2)
    kept, plain = allocator.allocate(), allocator.allocate()
    allocator.publish(kept, b"a", 1)
    allocator.free(plain)
    allocator.free(kept)
    assert allocator.allocate() == plain
    assert allocator.find(b"a") == kept


def test_contents_are_published_once() -> None:
    allocator = BlockAllocator(2)
    first, second = allocator.allocate(), allocator.allocate()
    allocator.publish(first, b"a", 1)
    allocator.publish(second, b"a", 1)
    assert allocator.find(b"a") == first
    allocator.free(second)
    assert allocator.allocate() == second
    allocator.forget_contents()
    assert allocator.find(b"a") is None
    allocator.check_invariants()


def test_a_hash_covers_everything_before_it() -> None:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, [1, 2, 3, 4, 5, 6], 2, 2)
    first = list(hashes)
    extend_block_hashes(hashes, [1, 2, 3, 4, 5, 6], 2, 3)
    assert hashes[:2] == first
    assert len(set(hashes)) == 3
    other: list[bytes] = []
    extend_block_hashes(other, [1, 2, 4, 3, 5, 6], 2, 3)
    assert [a == b for a, b in zip(hashes, other, strict=True)] == [True, False, False]
    with pytest.raises(AssertionError, match="only full blocks"):
        extend_block_hashes(hashes, [1, 2, 3, 4, 5, 6, 7], 2, 4)
