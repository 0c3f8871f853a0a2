"""Requests for vectors: they end with their prompt, sample nothing, and disturb no other."""

import random
from dataclasses import replace
from typing import Any

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.errors import InvalidRequestError, TooLargeError
from quire.contract.outputs import TOKENS_OF_DECODING, FinishReason
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from tests.fakes.fake_model import fake_vector
from tests.unit.scheduler.factories import (
    VOCAB_SIZE,
    Cell,
    make_params,
    make_prompt,
    reference,
)

POOLING = PoolingParams()
ONE = make_params(max_tokens=1)


def ask(cell: Cell, prompt: list[int], **options: Any) -> int:
    return cell.add(prompt, ONE, pooling_params=POOLING, **options)


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
@pytest.mark.parametrize("num_tokens", [1, 4, 5, 30])
def test_a_vector_ends_its_request_and_no_token_comes(
    num_tokens: int, max_steps_in_flight: int
) -> None:
    cell = Cell(max_num_batched_tokens=8, max_steps_in_flight=max_steps_in_flight)
    prompt = make_prompt(num_tokens)
    group_id = ask(cell, prompt)
    cell.run()
    assert cell.vectors == {group_id: fake_vector(prompt, POOLING)}
    assert cell.finished == {group_id: FinishReason.STOP}
    assert cell.tokens == {group_id: []}
    assert cell.model.num_computed == num_tokens, "no slot is taken beyond the prompt"
    assert cell.num_steps == -(-num_tokens // 8)


def test_a_prompt_may_be_as_long_as_the_model_allows() -> None:
    cell = Cell(max_model_len=32, num_blocks=8, block_size=4)
    group_id = ask(cell, make_prompt(32))
    cell.run()
    assert cell.vectors.keys() == {group_id}
    with pytest.raises(TooLargeError, match="at most 32 tokens, got 33"):
        ask(cell, make_prompt(33))


def test_a_prompt_must_fit_the_cache() -> None:
    cell = Cell(max_model_len=64, num_blocks=8, block_size=4)
    with pytest.raises(TooLargeError, match="prompt: must hold at most 32 tokens, got 33"):
        ask(cell, make_prompt(33))


def test_only_its_last_token_is_computed_where_the_rest_is_cached() -> None:
    cell = Cell(enable_prefix_caching=True)
    prompt = make_prompt(13)
    expected = fake_vector(prompt, POOLING)
    first = ask(cell, prompt)
    cell.run()
    num_before = cell.model.num_computed
    second = ask(cell, prompt)
    cell.run()
    assert cell.vectors == {first: expected, second: expected}
    assert cell.model.num_computed - num_before == 1


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_a_vector_in_flight_at_a_preemption_is_computed_again(
    num_steps: int, mode: PreemptionMode
) -> None:
    cell = Cell(
        max_num_batched_tokens=6,
        max_num_seqs=1,
        max_steps_in_flight=2,
        num_host_blocks=64,
        preemption_mode=mode,
    )
    prompt = make_prompt(23)
    group_id = ask(cell, prompt, priority=1)
    for _ in range(num_steps):
        cell.step()
    urgent = cell.add(make_prompt(4), make_params(max_tokens=2))
    cell.run()
    assert cell.vectors == {group_id: fake_vector(prompt, POOLING)}
    assert cell.tokens[urgent] == reference(make_prompt(4), max_tokens=2)


def test_losing_the_workers_accuses_it_as_any_other() -> None:
    cell = Cell(max_num_batched_tokens=6)
    prompt = make_prompt(23)
    group_id = ask(cell, prompt)
    cell.step()
    cell.scheduler.schedule()
    assert [each.group_id for each in cell.lose_workers().suspects] == [group_id]
    cell.run()
    assert cell.vectors == {group_id: fake_vector(prompt, POOLING)}


def test_it_counts_as_no_work_beyond_its_prompt() -> None:
    cell = Cell(max_num_batched_tokens=6)
    ask(cell, make_prompt(23))
    assert cell.outstanding_tokens == 23
    cell.add(make_prompt(10))
    assert cell.outstanding_tokens == 33 + TOKENS_OF_DECODING
    cell.step()
    assert cell.outstanding_tokens == 27 + TOKENS_OF_DECODING


def test_outputs_beside_a_vector_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="pooling_params"):
        Submission([5], ONE, {0: [6]}, pooling_params=POOLING)
    with pytest.raises(InvalidRequestError, match="pooling_params"):
        Submission([5], SamplingParams(n=2, seed=1), pooling_params=POOLING)


def test_one_that_fails_ends_alone() -> None:
    cell = Cell()
    first, second = ask(cell, make_prompt(5)), ask(cell, make_prompt(9))
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    result = cell.model.step(outputs)
    (failed, _), kept = result.vectors[0], result.vectors[1]
    result.failed_sequence_ids.append(failed)  # type: ignore[attr-defined]
    result.vectors[:] = [kept]  # type: ignore[index]
    cell.take(cell.scheduler.update(result))
    assert cell.finished == {first: FinishReason.ERROR, second: FinishReason.STOP}
    assert cell.vectors.keys() == {second}


def test_a_token_in_the_place_of_a_vector_is_no_answer() -> None:
    """Of workers of a release that ignores what is asked for."""
    cell = Cell()
    group_id, text = ask(cell, make_prompt(5)), cell.add(make_prompt(9), make_params(max_tokens=2))
    outputs = cell.scheduler.schedule()
    assert outputs is not None
    outputs.new_sequences[0] = replace(outputs.new_sequences[0], pooling_params=None)
    cell.take(cell.scheduler.update(cell.model.step(outputs)))
    cell.scheduler.check_invariants()
    assert cell.finished == {group_id: FinishReason.ERROR}
    assert (cell.tokens[group_id], cell.vectors) == ([], {})
    cell.run()
    assert cell.tokens[text] == reference(make_prompt(9), max_tokens=2)


@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("max_draft_tokens", [0, 3])
@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_random_company(
    seed: int, max_steps_in_flight: int, max_draft_tokens: int, mode: PreemptionMode
) -> None:
    """Vectors and texts of a random workload are those of each request alone."""
    rng = random.Random(seed)
    cell = Cell(
        num_blocks=14,
        block_size=4,
        max_num_batched_tokens=rng.choice([5, 16, 64]),
        max_num_seqs=rng.choice([4, 8]),
        max_model_len=48,
        max_steps_in_flight=max_steps_in_flight,
        enable_prefix_caching=rng.random() < 0.5,
        num_host_blocks=40,
        preemption_mode=mode,
        max_draft_tokens=max_draft_tokens,
    )
    texts: dict[int, tuple[list[int], SamplingParams]] = {}
    prompts: dict[int, tuple[list[int], PoolingParams]] = {}
    aborted: set[int] = set()
    num_requests = 150
    while len(texts) + len(prompts) < num_requests or cell.scheduler.has_unfinished:
        while len(texts) + len(prompts) < num_requests and rng.random() < 0.6:
            options = {"priority": rng.choice([0, 0, 1, -1]), "now": cell.num_steps}
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
            if rng.random() < 0.2:
                prompt[:12] = range(12)
            if rng.random() < 0.5:
                pooling = PoolingParams(normalize=rng.random() < 0.5)
                group_id = cell.add(prompt, ONE, pooling_params=pooling, **options)
                prompts[group_id] = prompt, pooling
            else:
                params = make_params(max_tokens=rng.randint(1, 17), seed=rng.getrandbits(64))
                texts[cell.add(prompt, params, **options)] = prompt, params
        if prompts and rng.random() < 0.05:
            victim = rng.choice(list(prompts))
            if cell.scheduler.abort(victim):
                aborted.add(victim)
        if rng.random() < 0.01:
            cell.lose_workers()
        if cell.scheduler.has_unfinished:
            cell.step()
    cell.run()
    assert cell.scheduler.counters.preemptions > 0
    assert cell.vectors == {
        group_id: fake_vector(prompt, pooling)
        for group_id, (prompt, pooling) in prompts.items()
        if group_id not in aborted
    }
    for group_id, (prompt, params) in texts.items():
        assert cell.tokens[group_id] == reference(
            prompt, max_tokens=params.max_tokens, seed=params.seed
        )
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks
