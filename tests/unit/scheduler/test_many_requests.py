"""Tens of thousands of requests through the pure scheduler, with every invariant at every step."""

import random
from collections import deque
from dataclasses import dataclass

import pytest

from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs, StepResult
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from tests.depth import budget

NUM_REQUESTS = budget("requests through the scheduler", test=10_000, deep=100_000)
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 4096
MAX_WAITING = 2000


@dataclass(slots=True)
class Mirror:
    """Lengths of a sequence that a worker holds."""

    num_tokens: int
    num_computed_tokens: int


class Worker:
    """Counts where a real one computes; every sampled token is the length of its sequence."""

    def __init__(self) -> None:
        self.mirrors: dict[int, Mirror] = {}

    def step(self, outputs: SchedulerOutputs) -> StepResult:
        for sequence_id in outputs.released_sequence_ids:
            del self.mirrors[sequence_id]
        for state in outputs.new_sequences:
            assert state.sequence_id not in self.mirrors
            self.mirrors[state.sequence_id] = Mirror(
                len(state.token_ids), state.num_computed_tokens
            )
        result = StepResult([], [])
        counts = zip(outputs.sequence_ids, outputs.num_scheduled_tokens, strict=True)
        for sequence_id, num_scheduled in counts:
            mirror = self.mirrors[sequence_id]
            mirror.num_computed_tokens += num_scheduled
            assert mirror.num_computed_tokens <= mirror.num_tokens
            if mirror.num_computed_tokens == mirror.num_tokens:
                result.sequence_ids.append(sequence_id)
                result.token_ids.append(mirror.num_tokens)
                mirror.num_tokens += 1
        return result


@pytest.mark.budget
@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_all_end_with_what_they_asked_for_and_none_starves(max_steps_in_flight: int) -> None:
    rng = random.Random(max_steps_in_flight)
    blocks = BlockSpaceManager(BLOCK_SIZE, 200, watermark=0.0)
    scheduler = Scheduler(
        blocks,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=512,
        eos_token_ids=(),
        enable_prefix_caching=True,
    )
    worker, in_flight = Worker(), deque[StepResult]()
    wanted: dict[int, int] = {}
    received: dict[int, int] = {}
    came_at: dict[int, int] = {}
    num_added = num_steps = num_finished = longest = 0
    while num_added < NUM_REQUESTS or scheduler.has_unfinished:
        while num_added < NUM_REQUESTS and len(scheduler.queues.waiting) < MAX_WAITING:
            max_tokens = rng.randint(1, 24)
            prompt = [rng.randrange(5000)] * rng.randint(1, 24)
            params = SamplingParams(seed=0, max_tokens=max_tokens)
            group_id = scheduler.add(Submission(prompt, params))[0]
            wanted[group_id], received[group_id] = max_tokens, 0
            came_at[group_id] = num_steps
            num_added += 1
        while len(in_flight) < max_steps_in_flight:
            outputs = scheduler.schedule()
            scheduler.check_invariants()
            if outputs is not None:
                assert len(outputs.sequence_ids) <= MAX_NUM_SEQS
                assert sum(outputs.num_scheduled_tokens) <= MAX_NUM_BATCHED_TOKENS
                in_flight.append(worker.step(outputs))
            elif in_flight:
                break
        progress = scheduler.update(in_flight.popleft())
        num_steps += 1
        for group_id in progress.group_ids:
            received[group_id] += 1
        for finished in progress.finished:
            num_finished += 1
            assert received.pop(finished.group_id) == wanted.pop(finished.group_id)
            longest = max(longest, num_steps - came_at.pop(finished.group_id))
    assert num_finished == NUM_REQUESTS
    # At most 2,000 are ahead of a request, some 100 run at once, each for 24 steps at most.
    assert longest < MAX_WAITING / 100 * 24, "a request was overtaken again and again"
    assert scheduler.counters.preemptions > NUM_REQUESTS / 1000
    assert scheduler.prefix_cache.num_tokens_found > 0
    assert blocks.num_free_blocks == blocks.num_blocks
