"""Groups that give up their blocks to others lose no token."""

from tests.unit.scheduler.factories import (
    Cell,
    make_params,
    make_prompt,
    reference,
)


def test_the_latest_group_is_preempted_and_keeps_its_output() -> None:
    cell = Cell(num_blocks=4, block_size=4)
    first = cell.add(make_prompt(7, 1), make_params(max_tokens=6))
    second = cell.add(make_prompt(7, 2), make_params(max_tokens=6))
    _, second_id = cell.step().sequence_ids
    cell.step()
    # Both need a third block now, and there is none: the second gives up its two.
    third = cell.step()
    assert third.released_sequence_ids == [second_id]
    assert len(third.sequence_ids) == 1
    assert (len(cell.scheduler.queues.waiting), cell.scheduler.counters.preemptions) == (1, 1)
    assert len(cell.tokens[second]) == 2
    cell.run()
    assert cell.tokens[first] == reference(make_prompt(7, 1), max_tokens=6)
    assert cell.tokens[second] == reference(make_prompt(7, 2), max_tokens=6)


def test_a_preempted_group_comes_back_in_full_and_before_others() -> None:
    cell = Cell(num_blocks=4, block_size=4)
    cell.add(make_prompt(7, 1), make_params(max_tokens=3))
    second = cell.add(make_prompt(7, 2), make_params(max_tokens=6))
    first_step = cell.step()
    cell.add(make_prompt(1, 3), make_params(max_tokens=1))
    cell.step()
    preempting = cell.step()
    assert preempting.new_sequences == [], "nothing is admitted while something is preempted"
    back = cell.step().new_sequences
    assert back[0].sequence_id == first_step.sequence_ids[1]
    assert back[0].token_ids == (*make_prompt(7, 2), *cell.tokens[second][:2])
    assert back[0].num_computed_tokens == 0


def test_the_group_that_needs_the_block_may_be_the_victim() -> None:
    cell = Cell(num_blocks=3, block_size=4)
    cell.add(make_prompt(6, 1), make_params(max_tokens=3))
    cell.add(make_prompt(4, 2), make_params(max_tokens=3))
    ids = cell.step().sequence_ids
    second = cell.step()
    assert second.sequence_ids == ids[:1]
    assert second.released_sequence_ids == ids[1:]


def test_several_groups_are_preempted_for_one_and_stay_in_order() -> None:
    cell = Cell(num_blocks=4, block_size=2)
    for first in range(3):
        cell.add(make_prompt(2, first), make_params(max_tokens=6))
    ids = cell.step().sequence_ids
    seen: list[int] = []
    while cell.scheduler.has_unfinished:
        seen.extend(state.sequence_id for state in cell.step().new_sequences)
    assert cell.scheduler.counters.preemptions >= 2
    assert seen == sorted(seen, key=ids.index)
    for group_id, first in zip(cell.tokens, range(3), strict=True):
        assert cell.tokens[group_id] == reference(make_prompt(2, first), max_tokens=6)


def test_a_group_preempted_in_mid_prompt_starts_over() -> None:
    cell = Cell(num_blocks=5, block_size=4, max_num_batched_tokens=6)
    first = cell.add(make_prompt(4, 1), make_params(max_tokens=9))
    second = cell.add(make_prompt(16, 2), make_params(max_tokens=2))
    cell.step()
    cell.step()
    assert cell.scheduler.counters.preemptions == 1
    cell.run()
    assert cell.tokens[first] == reference(make_prompt(4, 1), max_tokens=9)
    assert cell.tokens[second] == reference(make_prompt(16, 2), max_tokens=2)


def test_preempt_all_loses_nothing() -> None:
    cell = Cell(max_num_batched_tokens=8)
    prompts = [make_prompt(5, first) for first in range(4)]
    groups = [cell.add(prompt, make_params(max_tokens=8)) for prompt in prompts]
    for _ in range(3):
        cell.step()
    cell.scheduler.schedule()  # an order whose result never arrives
    cell.scheduler.preempt_all()
    cell.scheduler.check_invariants()
    assert (len(cell.scheduler.queues.running), len(cell.scheduler.queues.waiting)) == (0, 4)
    cell.model.sequences.clear()  # the workers start from nothing
    assert cell.scheduler.schedule().released_sequence_ids == []
    cell.scheduler.preempt_all()
    cell.run()
    for group_id, prompt in zip(groups, prompts, strict=True):
        assert cell.tokens[group_id] == reference(prompt, max_tokens=8)
