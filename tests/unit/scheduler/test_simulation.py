"""Random workloads over a tiny cache: nothing is lost, reordered, starved or different."""

import random
from dataclasses import replace
from typing import Any

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import FinishReason, Hypothesis
from quire.contract.sampling_params import SamplingParams
from tests.fakes.fake_model import fake_generate
from tests.unit.scheduler.factories import EOS_TOKEN_ID, VOCAB_SIZE, Cell

MAX_MODEL_LEN = 48


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
    if rng.random() < 0.2:
        prompt[:12] = range(12)
    kind: dict[str, Any] = {"temperature": rng.choice([0.0, 1.0])}
    if rng.random() < 0.2:
        n = rng.randint(1, 2)
        kind = {"n": n, "best_of": rng.randint(n, 3)}
    elif rng.random() < 0.15:
        kind = {
            "use_beam_search": True,
            "temperature": 0.0,
            "n": 2,
            "best_of": rng.randint(2, 3),
            "length_penalty": rng.choice([0.0, 1.0, 2.0]),
            "early_stopping": rng.choice([True, False, "never"]),
        }
    params = SamplingParams(
        seed=rng.getrandbits(64),
        max_tokens=rng.choice([None, 1, 3, rng.randint(1, 30)]),
        stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.randint(0, 2))),
        ignore_eos=rng.random() < 0.7,
        prompt_logprobs=rng.choice([None, None, 0]),
        **kind,
    )
    return prompt, params


def beam_search(prompt: list[int], params: SamplingParams) -> list[Hypothesis]:
    """What a search finds that is never disturbed."""
    cell = Cell(num_blocks=200, max_model_len=MAX_MODEL_LEN)
    group_id = cell.add(prompt, params)
    cell.run()
    assert cell.scheduler.counters.preemptions == 0
    return cell.hypotheses[group_id]


def check_outputs(cell: Cell, group_id: int, prompt: list[int], params: SamplingParams) -> None:
    """The outputs of a group that has ended are those of its sequences run alone."""
    if params.prompt_logprobs is not None:
        assert cell.reported_prompts.get(group_id, []) == prompt[1:]
    if params.use_beam_search:
        assert cell.hypotheses[group_id] == beam_search(prompt, params)
        return
    for index in range(params.width):
        expected = fake_generate(
            prompt,
            params,
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(EOS_TOKEN_ID,),
            sequence_index=index,
        )
        assert cell.outputs[group_id, index] == expected
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS_TOKEN_ID,))}
        reason = FinishReason.STOP if expected[-1] in stops else FinishReason.LENGTH
        assert cell.ends[group_id, index] is reason


def count_idle_slots(cell: Cell) -> int:
    """Slots without a token, looked for in every block of every table."""
    filled: dict[int, int] = {}
    for sequence_id in cell.blocks.sequence_ids:
        group = cell.scheduler.residency.groups[sequence_id]
        num_computed = group.sequences[sequence_id].num_computed_tokens
        for place, block_id in enumerate(cell.blocks.block_table(sequence_id)):
            num_here = num_computed - place * cell.blocks.block_size
            num_here = min(max(num_here, 0), cell.blocks.block_size)
            filled[block_id] = max(filled.get(block_id, 0), num_here)
    return sum(cell.blocks.block_size - num_here for num_here in filled.values())


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", PreemptionMode)
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
@pytest.mark.parametrize("max_draft_tokens", [0, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_random_workload_equals_an_unconstrained_run(
    seed: int,
    max_draft_tokens: int,
    max_steps_in_flight: int,
    prefix_caching: bool,
    mode: PreemptionMode,
) -> None:
    rng = random.Random(seed)
    watermark, most_tokens = rng.choice([0.0, 0.05]), rng.choice([5, 16, 64])
    cell = Cell(
        # 3 sequences of the greatest length fit.
        num_blocks=36,
        block_size=4,
        watermark=watermark,
        max_num_batched_tokens=most_tokens,
        max_num_seqs=rng.choice([6, 8, 12]),
        max_model_len=MAX_MODEL_LEN,
        max_steps_in_flight=max_steps_in_flight,
        enable_prefix_caching=prefix_caching,
        num_host_blocks=rng.choice([10, 60]),
        preemption_mode=mode,
        max_draft_tokens=max_draft_tokens,
    )
    # Prices by which moving the 4 tokens of a full block is cheaper, and that of 2 is not.
    cell.scheduler.preemption_costs.block_us = 15.0
    for num_tokens in (1, 50):
        cell.scheduler.preemption_costs.observe_step(num_tokens, 10 * num_tokens)
    requests: dict[int, tuple[list[int], SamplingParams]] = {}
    aborted: set[int] = set()
    cut: set[tuple[int, int]] = set()
    num_requests = 300
    while len(requests) < num_requests or cell.scheduler.has_unfinished:
        # Arrivals come in bursts, so that the queue both fills and runs dry.
        while len(requests) < num_requests and rng.random() < 0.6:
            request = random_request(rng)
            group_id = cell.add(*request, now=cell.num_steps, priority=rng.choice([0, 0, 1, -1]))
            requests[group_id] = request
        if requests and rng.random() < 0.03:
            victim = rng.choice(list(requests))
            if cell.scheduler.abort(victim):
                aborted.add(victim)
        if requests and rng.random() < 0.03:
            victim = rng.choice(list(requests))
            if requests[victim][1].width > 1 and not requests[victim][1].use_beam_search:
                cell.scheduler.abort_sequence(victim, 0)
                cut.add((victim, 0))
        if rng.random() < 0.01:
            cell.lose_workers()
        if cell.scheduler.has_unfinished:
            outputs = cell.step()
            assert cell.scheduler.residency.num_idle_slots == count_idle_slots(cell)
            assert sum(outputs.num_scheduled_tokens) <= most_tokens
    cell.run()  # what is still in flight
    counters = cell.scheduler.counters
    assert counters.preemptions > 5
    assert (counters.swapped_out_blocks > 0) == (mode is not PreemptionMode.RECOMPUTE)
    assert counters.swapped_in_blocks <= counters.swapped_out_blocks
    assert cell.model.num_copied > 20
    drafts = cell.scheduler.speculation.counters
    if max_draft_tokens:
        assert 0 < drafts.accepted_tokens < drafts.draft_tokens
    else:
        assert drafts.draft_tokens == 0
    assert (cell.scheduler.prefix_cache.num_tokens_found > 0) == prefix_caching
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks
    assert cell.blocks.num_free_host_blocks == cell.blocks.num_host_blocks
    assert cell.blocks.num_blocks_saved == 0
    for group_id, (prompt, params) in requests.items():
        if group_id in aborted:
            assert group_id not in cell.ended
        elif not any(group == group_id for group, _ in cut):
            check_outputs(cell, group_id, prompt, params)
        else:
            others = replace(params, n=params.width, best_of=None)
            for index in range(1, params.width):
                expected = fake_generate(
                    prompt,
                    others,
                    vocab_size=VOCAB_SIZE,
                    max_model_len=MAX_MODEL_LEN,
                    eos_token_ids=(EOS_TOKEN_ID,),
                    sequence_index=index,
                )
                assert cell.outputs[group_id, index] == expected


def test_first_tokens_come_in_order_of_arrival_under_a_flood() -> None:
    """A long request is not starved by short ones that would fit beside those that run."""
    rng = random.Random(1)
    cell = Cell(num_blocks=12, block_size=4, max_num_seqs=8, max_model_len=MAX_MODEL_LEN)
    for _ in range(8):
        cell.add([1, 2, 3])
    old = cell.add([rng.randrange(VOCAB_SIZE) for _ in range(40)])
    first_tokens: list[int] = []
    while old not in cell.finished:
        cell.add([rng.randrange(VOCAB_SIZE)])
        cell.step()
        first_tokens += [g for g, tokens in cell.tokens.items() if len(tokens) == 1]
        # The 9 first groups are 45 tokens long; alone, one after the other, they would take this.
        assert cell.num_steps < 9 * MAX_MODEL_LEN
    admitted = list(dict.fromkeys(first_tokens))
    assert admitted == sorted(admitted)
    assert old in admitted
