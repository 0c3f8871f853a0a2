"""Orders of a step, admission, resumed requests, refusals."""

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import FinishReason, TokenLogprobs
from quire.contract.steps import StepResult
from tests.unit.scheduler.factories import (
    Cell,
    make_params,
    make_prompt,
    reference,
)

# ---------------------------------------------------------------- orders of a step


def test_first_step_sends_the_sequence_in_full() -> None:
    cell = Cell(block_size=4)
    prompt = make_prompt(6)
    cell.add(prompt, make_params(max_tokens=3, seed=11))
    outputs = cell.step()
    (state,) = outputs.new_sequences
    assert state.token_ids == tuple(prompt)
    assert (state.sequence_index, state.num_computed_tokens) == (0, 0)
    assert len(state.block_ids) == 2
    assert state.sampling_params.seed == 11
    assert outputs.sequence_ids == [state.sequence_id]
    assert outputs.num_scheduled_tokens == [6]
    assert (outputs.num_new_blocks, outputs.new_block_ids) == ([0], [])


def test_later_steps_are_deltas() -> None:
    cell = Cell(block_size=4)
    cell.add(make_prompt(7), make_params(max_tokens=4))
    cell.step()
    second, third = cell.step(), cell.step()
    assert second.new_sequences == third.new_sequences == []
    assert second.num_scheduled_tokens == third.num_scheduled_tokens == [1]
    # Token 7 fills the second block, token 8 begins the third.
    assert (second.num_new_blocks, second.new_block_ids) == ([0], [])
    assert third.num_new_blocks == [1]
    assert len(third.new_block_ids) == 1


def test_a_finished_sequence_is_released_with_the_next_step() -> None:
    cell = Cell()
    cell.add(make_prompt(2), make_params(max_tokens=1))
    cell.add(make_prompt(3), make_params(max_tokens=2))
    first = cell.step()
    assert first.released_sequence_ids == []
    assert cell.step().released_sequence_ids == [first.sequence_ids[0]]
    assert cell.blocks.num_free_blocks == 64


def test_tokens_equal_the_reference() -> None:
    cell = Cell()
    prompt = make_prompt(9)
    group_id = cell.add(prompt, make_params(max_tokens=20))
    cell.run()
    assert cell.tokens[group_id] == reference(prompt, max_tokens=20)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    cell = Cell(max_num_batched_tokens=4)
    group_id = cell.add(make_prompt(10), make_params(max_tokens=2))
    chunks = [cell.step().num_scheduled_tokens for _ in range(3)]
    assert chunks == [[4], [4], [2]]
    cell.run()
    assert cell.tokens[group_id] == reference(make_prompt(10), max_tokens=2)


def test_running_sequences_go_before_a_prompt_in_the_budget() -> None:
    cell = Cell(max_num_batched_tokens=4)
    cell.add(make_prompt(3), make_params(max_tokens=5))
    cell.step()
    cell.add(make_prompt(10), make_params(max_tokens=1))
    assert cell.step().num_scheduled_tokens == [1, 3]
    assert cell.step().num_scheduled_tokens == [1, 3]


def test_a_running_sequence_waits_when_the_budget_is_spent() -> None:
    cell = Cell(max_num_batched_tokens=2)
    for first in (1, 2):
        cell.add(make_prompt(1, first), make_params(max_tokens=3))
    cell.step()
    cell.add(make_prompt(1, 3), make_params(max_tokens=3))
    assert len(cell.step().sequence_ids) == 2
    assert len(cell.scheduler.queues.waiting) == 1
    cell.run()
    assert all(len(tokens) == 3 for tokens in cell.tokens.values())


def test_budget_smaller_than_the_running_set_starves_no_group() -> None:
    cell = Cell(max_num_batched_tokens=3)
    # The chunked prompt takes what the step has left, then decoding needs a slot for each.
    prompts = [make_prompt(1), make_prompt(2), make_prompt(9)]
    groups = [cell.add(prompt, make_params(max_tokens=6)) for prompt in prompts]
    cell.run()
    for group_id, prompt in zip(groups, prompts, strict=True):
        assert cell.tokens[group_id] == reference(prompt, max_tokens=6)


def test_max_num_seqs_bounds_the_batch() -> None:
    cell = Cell(max_num_seqs=2)
    for first in range(3):
        cell.add(make_prompt(2, first), make_params(max_tokens=2))
    assert len(cell.step().sequence_ids) == 2
    assert (len(cell.scheduler.queues.running), len(cell.scheduler.queues.waiting)) == (2, 1)


def test_admission_is_in_order_of_arrival_even_if_a_later_one_would_fit() -> None:
    cell = Cell(num_blocks=4, block_size=4)
    cell.add(make_prompt(8), make_params(max_tokens=1))
    cell.add(make_prompt(12), make_params(max_tokens=1))
    cell.add(make_prompt(1), make_params(max_tokens=1))
    assert cell.step().num_scheduled_tokens == [8]
    assert cell.step().num_scheduled_tokens == [12, 1]


def test_the_watermark_keeps_a_newcomer_out() -> None:
    cell = Cell(num_blocks=4, block_size=4, watermark=0.25)
    cell.add(make_prompt(8), make_params(max_tokens=2))
    cell.add(make_prompt(8), make_params(max_tokens=2))
    assert cell.step().num_scheduled_tokens == [8]
    assert len(cell.scheduler.queues.waiting) == 1


def test_nothing_to_do_is_no_step() -> None:
    cell = Cell()
    assert not cell.scheduler.has_unfinished
    assert cell.scheduler.schedule() is None


# ---------------------------------------------------------------- resumed requests


def test_a_resumed_request_continues_as_if_never_interrupted() -> None:
    prompt = make_prompt(5)
    whole = reference(prompt, max_tokens=12)
    for received in range(1, 12):
        cell = Cell(max_num_batched_tokens=6)
        group_id = cell.add(prompt, make_params(max_tokens=12), tuple(whole[:received]))
        cell.run()
        assert cell.tokens[group_id] == whole[received:]


def test_a_resumed_request_that_is_complete_needs_no_step() -> None:
    cell = Cell()
    tokens = (9, 8, 7)
    by_length = cell.add(make_prompt(2), make_params(max_tokens=3), tokens)
    by_stop = cell.add(make_prompt(2), make_params(stop_token_ids=(7,)), tokens)
    assert cell.finished == {by_length: FinishReason.LENGTH, by_stop: FinishReason.STOP}
    assert not cell.scheduler.has_unfinished


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "field", "numbers"),
    [
        (0, 0, "prompt", ("0",)),
        (20, 0, "prompt", ("20",)),
        (15, 6, "output_token_ids", ("20", "21")),
    ],
)
def test_what_can_never_run_is_refused(
    prompt_len: int, output_len: int, field: str, numbers: tuple[str, ...]
) -> None:
    cell = Cell(max_model_len=20)
    with pytest.raises(InvalidRequestError) as caught:
        cell.add(make_prompt(prompt_len), None, tuple(make_prompt(output_len)))
    assert caught.value.field == field
    assert all(number in caught.value.message for number in numbers)
    assert not cell.scheduler.has_unfinished


def test_a_prompt_larger_than_the_cache_is_refused() -> None:
    cell = Cell(num_blocks=2, block_size=4, max_model_len=100)
    with pytest.raises(InvalidRequestError, match="cache of 8 tokens, got 9"):
        cell.add(make_prompt(9))
    group_id = cell.add(make_prompt(8), make_params(max_tokens=1))
    cell.run()
    assert len(cell.tokens[group_id]) == 1


# ---------------------------------------------------------------- logprobs


def test_logprobs_stay_with_their_tokens() -> None:
    cell = Cell()
    groups = [cell.add(make_prompt(3, first), make_params(max_tokens=4)) for first in range(3)]
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    assert cell.scheduler.abort(groups[1])
    logprobs = [TokenLogprobs((token,), (-float(token),), 1) for token in (5, 6, 7)]
    progress = cell.scheduler.update(StepResult(outputs.sequence_ids, [5, 6, 7], [], logprobs))
    assert progress.group_ids == [groups[0], groups[2]]
    assert progress.logprobs == [logprobs[0], logprobs[2]]


# ---------------------------------------------------------------- accounting


def test_idle_slots_are_those_of_last_blocks() -> None:
    cell = Cell(block_size=4)
    cell.add(make_prompt(6), make_params(max_tokens=4))
    cell.add(make_prompt(4), make_params(max_tokens=4))
    assert cell.scheduler.residency.num_idle_slots == 0
    for expected in (2 + 0, 1 + 3, 0 + 2):
        cell.step()
        assert cell.scheduler.residency.num_idle_slots == expected
    cell.run()
    assert cell.scheduler.residency.num_idle_slots == 0
