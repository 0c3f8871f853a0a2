"""Random workloads over a tiny cache: nothing is lost, reordered, starved or different."""

import random

import pytest

from quire.outputs import FinishReason
from quire.sampling_params import SamplingParams
from tests.fakes.fake_model import fake_generate
from tests.unit.scheduler.factories import EOS_TOKEN_ID, VOCAB_SIZE, Cell

MAX_MODEL_LEN = 48


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
    params = SamplingParams(
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.getrandbits(64),
        max_tokens=rng.choice([None, 1, 3, rng.randint(1, 30)]),
        stop_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.randint(0, 2))),
        ignore_eos=rng.random() < 0.7,
    )
    return prompt, params


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_random_workload_equals_an_unconstrained_run(
    seed: int, max_steps_in_flight: int, prefix_caching: bool
) -> None:
    rng = random.Random(seed)
    cell = Cell(
        num_blocks=rng.randint(12, 24),
        block_size=4,
        watermark=rng.choice([0.0, 0.05]),
        max_num_batched_tokens=rng.choice([5, 16, 64]),
        max_num_seqs=rng.choice([3, 8, 12]),
        max_model_len=MAX_MODEL_LEN,
        max_steps_in_flight=max_steps_in_flight,
        enable_prefix_caching=prefix_caching,
    )
    requests: dict[int, tuple[list[int], SamplingParams]] = {}
    aborted: set[int] = set()
    num_requests = 400
    while len(requests) < num_requests or cell.scheduler.has_unfinished:
        # Arrivals come in bursts, so that the queue both fills and runs dry.
        while len(requests) < num_requests and rng.random() < 0.4:
            request = random_request(rng)
            group_id = cell.add(*request)
            requests[group_id] = request
        if requests and rng.random() < 0.03:
            victim = rng.choice(list(requests))
            if cell.scheduler.abort(victim):
                aborted.add(victim)
        if rng.random() < 0.01:
            cell.lose_workers()
        if cell.scheduler.has_unfinished:
            outputs = cell.step()
            assert sum(outputs.num_scheduled_tokens) <= cell.scheduler._max_num_batched_tokens
    cell.run()  # what is still in flight
    assert cell.scheduler.counters.preemptions > 5
    assert (cell.scheduler.prefix_cache.num_tokens_found > 0) == prefix_caching
    assert cell.blocks.num_free_blocks == cell.blocks.num_blocks
    for group_id, (prompt, params) in requests.items():
        expected = fake_generate(
            prompt,
            params,
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(EOS_TOKEN_ID,),
        )
        if group_id in aborted:
            assert cell.tokens[group_id] == expected[: len(cell.tokens[group_id])]
            assert group_id not in cell.finished
            continue
        assert cell.tokens[group_id] == expected
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS_TOKEN_ID,))}
        reason = FinishReason.STOP if expected[-1] in stops else FinishReason.LENGTH
        assert cell.finished[group_id] is reason


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
