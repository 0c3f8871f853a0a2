import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.outputs import FinishReason, TokenLogprobs
from quire.contract.steps import StepResult
from tests.fakes.fake_model import fake_generate
from tests.unit.scheduler.factories import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    Cell,
    make_params,
    make_prompt,
)


def reference(prompt: list[int], **kwargs: object) -> list[int]:
    return fake_generate(
        prompt,
        make_params(**kwargs),  # type: ignore[arg-type]
        vocab_size=VOCAB_SIZE,
        max_model_len=128,
        eos_token_ids=(EOS_TOKEN_ID,),
    )


def stepping_result(cell: Cell, *token_ids: int) -> StepResult:
    """Schedule a step and pretend that the batch sampled `token_ids`."""
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    assert len(outputs.sequence_ids) == len(token_ids)
    return StepResult(outputs.sequence_ids, list(token_ids))


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


def test_budget_smaller_than_the_running_set_starves_nobody() -> None:
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


# ---------------------------------------------------------------- preemption


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


# ---------------------------------------------------------------- ends


def test_max_tokens_ends_with_length() -> None:
    cell = Cell()
    group_id = cell.add(make_prompt(3), make_params(max_tokens=4))
    cell.run()
    assert len(cell.tokens[group_id]) == 4
    assert cell.finished[group_id] is FinishReason.LENGTH


def test_max_model_len_ends_with_length() -> None:
    cell = Cell(max_model_len=10)
    group_id = cell.add(make_prompt(3))
    cell.run()
    assert len(cell.tokens[group_id]) == 7
    assert cell.finished[group_id] is FinishReason.LENGTH


def test_eos_ends_with_stop() -> None:
    cell = Cell()
    group_id = cell.add(make_prompt(3), make_params(ignore_eos=False))
    cell.take(cell.scheduler.update(stepping_result(cell, EOS_TOKEN_ID)))
    assert cell.finished == {group_id: FinishReason.STOP}
    assert cell.tokens[group_id] == [EOS_TOKEN_ID]


def test_ignore_eos_goes_on() -> None:
    cell = Cell()
    cell.add(make_prompt(3), make_params(ignore_eos=True))
    cell.take(cell.scheduler.update(stepping_result(cell, EOS_TOKEN_ID)))
    assert cell.finished == {}


def test_a_stop_token_ends_even_when_eos_is_ignored() -> None:
    cell = Cell()
    group_id = cell.add(make_prompt(3), make_params(ignore_eos=True, stop_token_ids=(41, 42)))
    cell.take(cell.scheduler.update(stepping_result(cell, 42)))
    assert cell.finished == {group_id: FinishReason.STOP}


def test_a_prompt_that_ends_with_eos_is_continued() -> None:
    cell = Cell()
    group_id = cell.add([5, EOS_TOKEN_ID], make_params(ignore_eos=False, max_tokens=1))
    cell.run()
    assert len(cell.tokens[group_id]) == 1


def test_a_lone_sequence_that_outgrows_the_cache_ends_with_length() -> None:
    cell = Cell(num_blocks=2, block_size=4, max_model_len=100)
    group_id = cell.add(make_prompt(5))
    cell.run(max_steps=20)
    assert cell.finished[group_id] is FinishReason.LENGTH
    # Eight tokens have slots; the ninth was sampled from them.
    assert len(cell.tokens[group_id]) == 4


def test_two_sequences_that_outgrow_the_cache_do_not_deadlock() -> None:
    cell = Cell(num_blocks=3, block_size=4, max_model_len=100)
    groups = [cell.add(make_prompt(5, first)) for first in range(2)]
    cell.run(max_steps=60)
    assert [len(cell.tokens[group_id]) for group_id in groups] == [8, 8]


def test_a_failed_sequence_ends_alone() -> None:
    cell = Cell()
    bad = cell.add(make_prompt(2, 1), make_params(max_tokens=4))
    good = cell.add(make_prompt(2, 2), make_params(max_tokens=4))
    outputs = cell.scheduler.schedule()
    sampled = cell.model.step(outputs)
    bad_id, good_id = outputs.sequence_ids
    cell.take(cell.scheduler.update(StepResult([good_id], sampled.token_ids[1:], [bad_id])))
    assert cell.finished == {bad: FinishReason.ERROR}
    cell.scheduler.check_invariants()
    cell.run()
    assert cell.tokens[bad] == []
    assert cell.tokens[good] == reference(make_prompt(2, 2), max_tokens=4)


# ---------------------------------------------------------------- abort


def test_abort_of_a_running_group_frees_its_blocks_for_the_next_step() -> None:
    cell = Cell(num_blocks=4, block_size=4)
    first = cell.add(make_prompt(16, 1), make_params(max_tokens=1))
    cell.add(make_prompt(16, 2), make_params(max_tokens=1))
    outputs = cell.scheduler.schedule()
    result = cell.model.step(outputs)
    assert cell.scheduler.abort(first)
    assert cell.blocks.num_free_blocks == 4
    dropped = cell.scheduler.update(result)
    assert (dropped.group_ids, dropped.token_ids, dropped.finished) == ([], [], [])
    following = cell.step()
    assert following.released_sequence_ids == outputs.sequence_ids
    assert len(following.new_sequences) == 1


def test_a_failure_of_an_aborted_sequence_is_dropped() -> None:
    cell = Cell()
    group_id = cell.add(make_prompt(2))
    outputs = cell.scheduler.schedule()
    cell.scheduler.abort(group_id)
    assert cell.scheduler.update(StepResult([], [], outputs.sequence_ids)).finished == []


def test_abort_of_a_waiting_group_releases_nothing() -> None:
    cell = Cell(max_num_seqs=1)
    cell.add(make_prompt(2, 1), make_params(max_tokens=3))
    waiting = cell.add(make_prompt(2, 2), make_params(max_tokens=3))
    cell.step()
    assert cell.scheduler.abort(waiting)
    assert cell.step().released_sequence_ids == []
    assert len(cell.scheduler.queues.waiting) == 0


def test_abort_of_an_unknown_group_says_so() -> None:
    assert not Cell().scheduler.abort(99)


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
    group_id = cell.add(make_prompt(8))
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
