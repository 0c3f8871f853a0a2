"""A step scheduled before the result of the one before it is known."""

import pytest

from quire.contract.outputs import FinishReason
from tests.unit.scheduler.factories import (
    Cell,
    make_params,
    make_prompt,
    reference,
)


def test_the_step_ahead_computes_the_token_that_is_not_known_yet() -> None:
    cell = Cell()
    cell.add(make_prompt(6), make_params(max_tokens=5))
    first, ahead = cell.scheduler.schedule(), cell.scheduler.schedule()
    assert first is not None
    assert ahead is not None
    assert ahead.sequence_ids == first.sequence_ids
    assert (first.num_scheduled_tokens, ahead.num_scheduled_tokens) == ([6], [1])
    assert ahead.new_sequences == []


def test_nothing_is_sent_behind_a_last_token() -> None:
    cell = Cell()
    cell.add(make_prompt(6), make_params(max_tokens=1))
    assert cell.scheduler.schedule() is not None
    assert cell.scheduler.schedule() is None
    assert cell.scheduler.has_unfinished


def test_a_chunk_in_flight_samples_nothing_so_nothing_is_pending() -> None:
    cell = Cell(max_num_batched_tokens=4)
    group_id = cell.add(make_prompt(10), make_params(max_tokens=3))
    for _ in range(2):
        chunk = cell.scheduler.schedule()
        assert chunk is not None
        assert chunk.num_scheduled_tokens == [4]
    cell.lose_workers()
    cell.run()
    assert cell.tokens[group_id] == reference(make_prompt(10), max_tokens=3)


def test_what_ran_ahead_of_an_end_is_void_and_its_blocks_are_free() -> None:
    cell = Cell(max_steps_in_flight=2)
    prompt = make_prompt(5)
    output = reference(prompt, max_tokens=9)
    stop = output[4]
    group_id = cell.add(prompt, make_params(max_tokens=9, stop_token_ids=(stop,)))
    other = cell.add(make_prompt(4, 9), make_params(max_tokens=12))
    cell.run()
    assert cell.tokens[group_id] == output[: output.index(stop) + 1]
    assert cell.finished[group_id] is FinishReason.STOP
    assert cell.tokens[other] == reference(make_prompt(4, 9), max_tokens=12)
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks


def test_an_abort_voids_both_steps_in_flight() -> None:
    cell = Cell(max_steps_in_flight=2)
    victim = cell.add(make_prompt(5), make_params(max_tokens=20))
    other = cell.add(make_prompt(4, 9), make_params(max_tokens=12))
    for _ in range(3):
        cell.step()
    assert cell.scheduler.abort(victim)
    cell.run()
    assert len(cell.tokens[victim]) == 3
    assert victim not in cell.finished
    assert cell.tokens[other] == reference(make_prompt(4, 9), max_tokens=12)


def test_a_token_in_flight_of_a_preempted_sequence_is_sampled_again() -> None:
    cell = Cell(num_blocks=4, block_size=4, max_steps_in_flight=2)
    first = cell.add(make_prompt(7, 1), make_params(max_tokens=6))
    second = cell.add(make_prompt(7, 2), make_params(max_tokens=6))
    cell.run()
    assert cell.scheduler.counters.preemptions > 0
    assert cell.tokens[first] == reference(make_prompt(7, 1), max_tokens=6)
    assert cell.tokens[second] == reference(make_prompt(7, 2), max_tokens=6)


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_losing_the_workers_with_steps_in_flight_loses_no_token(num_steps: int) -> None:
    cell = Cell(max_num_batched_tokens=8, max_steps_in_flight=2)
    prompts = [make_prompt(5, first) for first in range(4)]
    groups = [cell.add(prompt, make_params(max_tokens=8)) for prompt in prompts]
    for _ in range(num_steps):
        cell.step()
    cell.lose_workers()
    cell.run()
    for group_id, prompt in zip(groups, prompts, strict=True):
        assert cell.tokens[group_id] == reference(prompt, max_tokens=8)


def test_a_lone_sequence_may_fill_the_cache() -> None:
    cell = Cell(num_blocks=3, block_size=4, max_steps_in_flight=2)
    group_id = cell.add(make_prompt(5), make_params(max_tokens=12 + 1 - 5))
    cell.run()
    assert cell.finished[group_id] is FinishReason.LENGTH
    assert cell.tokens[group_id] == reference(make_prompt(5))[: 12 + 1 - 5]
