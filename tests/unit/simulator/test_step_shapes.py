"""Shapes of steps, compared with counts of each order's sequences."""

import random

from quire.contract.engine_options import PreemptionMode
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import StepResult
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from simulator.step_shapes import StepShapes


def test_shapes_are_those_of_sequences_counted_one_by_one() -> None:
    rng = random.Random(4)
    scheduler = Scheduler(
        BlockSpaceManager(4, 40, 0.0, 40),
        max_num_batched_tokens=24,
        max_num_seqs=8,
        max_model_len=200,
        eos_token_ids=(),
        enable_prefix_caching=True,
        preemption_mode=PreemptionMode.SWAP,
    )
    shapes = StepShapes()
    computed: dict[int, int] = {}
    known: dict[int, int] = {}
    num_pure = num_moved = 0
    for _ in range(1500):
        if rng.random() < 0.15:
            prompt = [rng.choice([1, 2])] * rng.randint(1, 30)
            params = SamplingParams(seed=0, max_tokens=rng.randint(1, 40), ignore_eos=True)
            scheduler.add(Submission(prompt, params))
        orders = scheduler.schedule()
        if orders is None:
            continue
        for state in orders.new_sequences:
            computed[state.sequence_id] = state.num_computed_tokens
            known[state.sequence_id] = len(state.token_ids)
        num_pairs, sampling = 0, []
        for sequence_id, num_tokens in zip(
            orders.sequence_ids, orders.num_scheduled_tokens, strict=True
        ):
            start = computed[sequence_id]
            computed[sequence_id] += num_tokens
            if num_tokens > 1:
                num_pairs += sum(range(start + 1, start + num_tokens + 1))
            if computed[sequence_id] == known[sequence_id]:
                sampling.append(sequence_id)
                known[sequence_id] += 1
        shape, found = shapes.measure(orders)
        assert found == sampling
        assert shape.num_tokens == sum(orders.num_scheduled_tokens)
        assert shape.num_sequences == len(orders.sequence_ids)
        assert shape.num_context_tokens == sum(computed[each] for each in orders.sequence_ids)
        assert shape.num_attention_pairs == num_pairs
        moved = len(orders.blocks_to_swap_in) + len(orders.blocks_to_swap_out)
        assert shape.num_moved_blocks == moved
        num_pure += shape.num_tokens == shape.num_sequences
        num_moved += moved
        scheduler.update(StepResult(sampling, [0] * len(sampling)))
    assert num_pure > 100
    assert num_moved > 10
