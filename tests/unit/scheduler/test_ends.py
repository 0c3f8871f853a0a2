"""How groups end: length, stop tokens, failures, aborts."""

from dataclasses import replace
from typing import Any

import pytest

from quire.contract.errors import TooLargeError
from quire.contract.outputs import FinishReason
from quire.contract.steps import StepResult
from tests.unit.scheduler.factories import (
    EOS_TOKEN_ID,
    Cell,
    make_params,
    make_prompt,
    reference,
)


def stepping_result(cell: Cell, *token_ids: int) -> StepResult:
    """Schedule a step and pretend that the batch sampled `token_ids`."""
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    assert len(outputs.sequence_ids) == len(token_ids)
    return StepResult(outputs.sequence_ids, list(token_ids))


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


@pytest.mark.parametrize("max_tokens", [None, 5])
def test_a_sequence_that_may_outgrow_the_cache_is_refused(max_tokens: int | None) -> None:
    cell = Cell(num_blocks=2, block_size=4, max_model_len=100)
    with pytest.raises(TooLargeError, match=f"at most 4 .* 8 tokens .* got {max_tokens or 95}"):
        cell.add(make_prompt(5), make_params(max_tokens=max_tokens))
    # Eight tokens have slots; the ninth is sampled from them.
    group_id = cell.add(make_prompt(5), make_params(max_tokens=4))
    cell.run(max_steps=20)
    assert len(cell.tokens[group_id]) == 4


@pytest.mark.parametrize("num_blocks", [40, 64, 682])
@pytest.mark.parametrize("beams", [False, True])
def test_the_length_of_an_answer_does_not_depend_on_the_cache(num_blocks: int, beams: bool) -> None:
    cell = Cell(num_blocks=num_blocks, block_size=16, max_model_len=640)
    modes: dict[str, Any] = (
        {"use_beam_search": True, "temperature": 0.0, "best_of": 4} if beams else {}
    )
    params = make_params(n=4, max_tokens=400, ignore_eos=True, **modes)
    if num_blocks < 4 * 26:
        with pytest.raises(TooLargeError) as refused:
            cell.add(make_prompt(7), params)
        assert refused.value.field == "max_tokens"
        longest = num_blocks // 4 * 16 + 1 - 7
        assert f"at most {longest} for 4 sequences" in refused.value.message
        params = replace(params, max_tokens=longest)
    group_id = cell.add(make_prompt(7), params)
    cell.run(max_steps=2000)
    if not beams:
        assert [len(cell.outputs[group_id, index]) for index in range(4)] == [params.max_tokens] * 4


def test_two_sequences_that_outgrow_the_cache_do_not_deadlock() -> None:
    cell = Cell(num_blocks=3, block_size=4, max_model_len=100)
    params = make_params(max_tokens=8)
    groups = [cell.add(make_prompt(5, first), params) for first in range(2)]
    cell.run(max_steps=60)
    assert [len(cell.tokens[group_id]) for group_id in groups] == [8, 8]


def test_what_a_failed_sequence_computed_is_found_by_nobody() -> None:
    cell = Cell(enable_prefix_caching=True, block_size=4)
    bad = cell.add(make_prompt(20), make_params(max_tokens=4))
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    cell.model.step(outputs)
    cell.take(cell.scheduler.update(StepResult([], [], outputs.sequence_ids)))
    assert cell.finished == {bad: FinishReason.ERROR}
    assert cell.blocks.num_cached_blocks == 0
    cell.scheduler.check_invariants()


@pytest.mark.parametrize("is_barred", [False, True])
def test_a_failed_sequence_ends_alone(is_barred: bool) -> None:
    cell = Cell()
    bad = cell.add(make_prompt(2, 1), make_params(max_tokens=4))
    good = cell.add(make_prompt(2, 2), make_params(max_tokens=4))
    outputs = cell.scheduler.schedule()
    sampled = cell.model.step(outputs)
    bad_id, good_id = outputs.sequence_ids
    barred = [bad_id] if is_barred else []
    reason = FinishReason.NO_TOKEN if is_barred else FinishReason.ERROR
    result = StepResult([good_id], sampled.token_ids[1:], [bad_id], barred_sequence_ids=barred)
    cell.take(cell.scheduler.update(result))
    assert cell.finished == {bad: reason}
    cell.scheduler.check_invariants()
    cell.run()
    assert cell.tokens[bad] == []
    assert cell.tokens[good] == reference(make_prompt(2, 2), max_tokens=4)


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


def test_abort_of_an_unknown_group_returns_false() -> None:
    assert not Cell().scheduler.abort(99)
