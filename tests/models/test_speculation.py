"""A thousand requests of every sampling mode, drafted for in each step, preempted and killed."""

from collections import deque
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from random import Random

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import FinishReason, Hypothesis, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from tests.depth import budget
from tests.factories import EOS_TOKEN_ID, VOCAB_SIZE, llama_config, save_model
from tests.models.driver import load_runner
from worker_svc.steps.pending import PendingStep

NUM_REQUESTS = budget("requests with drafts", test=250, deep=1000)
# So few tokens that three in a row come again soon, and a draft is right now and then.
FEW = (30, 31, 32)
SAMPLED = SamplingParams(allowed_token_ids=FEW, max_tokens=30)
MODES = (
    SamplingParams(temperature=0.0, max_tokens=30),
    SAMPLED,
    replace(SAMPLED, temperature=0.4, top_k=2, top_p=0.9, min_p=0.05),
    replace(SAMPLED, presence_penalty=0.8),
    replace(SAMPLED, frequency_penalty=0.3, logprobs=2),
    replace(SAMPLED, repetition_penalty=1.4, logprobs=0),
    replace(SAMPLED, logit_bias={30: 2.0}, prompt_logprobs=1),
    replace(SAMPLED, stop_token_ids=(31,), logit_bias={31: -2.0}),
    replace(SAMPLED, stop_token_ids=(31,), logit_bias={31: 4.0}, min_tokens=12),
    replace(SAMPLED, bad_words_token_ids=((30, 31), (31, 31, 32)), logprobs=1),
    replace(SAMPLED, allowed_token_ids=(*FEW, EOS_TOKEN_ID), n=2, best_of=3, logprobs=1),
    SamplingParams(temperature=0.0, use_beam_search=True, n=2, best_of=3, max_tokens=12),
)


class Outputs:
    """What requests have got so far, by group and index."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int], list[TokenLogprobs]] = {}
        self.ends: dict[tuple[int, int], FinishReason] = {}
        self.hypotheses: dict[int, list[Hypothesis]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outputs) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Run:
    """All requests through a scheduler and a model.

    Args:
        model: directory.
        num_blocks: of the cache.
        draws: chooses slots for each sequence and step, and when the worker is lost; None for no
            drafts and an undisturbed run.
    """

    def __init__(self, model: Path, num_blocks: int, draws: Random | None = None) -> None:
        self._draws = draws
        self._runner = load_runner(
            model, block_size=8, num_blocks=num_blocks, swap_space_bytes=2**20, max_num_seqs=24
        )
        blocks = BlockSpaceManager(8, num_blocks, 0.0, self._runner.cache_engine.num_host_blocks)
        self.scheduler = Scheduler(
            blocks,
            max_num_batched_tokens=64,
            max_num_seqs=24,
            max_model_len=80,
            eos_token_ids=(EOS_TOKEN_ID,),
            enable_prefix_caching=draws is not None,
            preemption_mode=PreemptionMode.AUTO,
            max_draft_tokens=0 if draws is None else 8,
        )
        self.scheduler.preemption_costs.block_us = 15.0
        if draws is not None:
            self.scheduler.speculation.plan = self._plan  # type: ignore[method-assign]
        self.num_lost = 0
        self.outputs = Outputs()
        self._under_way: deque[tuple[SchedulerOutputs, PendingStep]] = deque()

    def _plan(self, sequence_ids: list[int], max_slots: int) -> dict[int, int]:
        """Slots for most sequences in most steps."""
        draws = self._draws
        assert draws is not None
        return {} if draws.random() < 0.1 else {each: draws.randint(1, 8) for each in sequence_ids}

    def run(self) -> Outputs:
        for index, mode in enumerate(islice(cycle(MODES), NUM_REQUESTS)):
            draw = Random(index)
            length = draw.choice((1, 9, 16, 30))
            prompt = [draw.randrange(3, VOCAB_SIZE) for _ in range(length)]
            self.scheduler.add(Submission(prompt, replace(mode, seed=index)))
        while self.scheduler.has_unfinished or self._under_way:
            while len(self._under_way) < 2 and (orders := self.scheduler.schedule()) is not None:
                self._under_way.append((orders, self._runner.execute(orders)))
            if self._draws is not None and self._draws.random() < 0.02:
                self._lose_worker()
            if self._under_way:
                self._finish(*self._under_way.popleft())
        return self.outputs

    def _lose_worker(self) -> None:
        self._under_way.clear()
        self.scheduler.preempt_all()
        self._runner.forget_sequences()
        self.num_lost += 1

    def _finish(self, orders: SchedulerOutputs, step: PendingStep) -> None:
        result, outputs = step.result(), self.outputs
        self.scheduler.preemption_costs.observe_step(step.batch.num_tokens, 10)
        progress = self.scheduler.update(result)
        self.scheduler.check_invariants()
        keys = list(zip(progress.group_ids, progress.sequence_indices, strict=True))
        for key, token_id in zip(keys, progress.token_ids, strict=True):
            outputs.tokens.setdefault(key, []).append(token_id)
        for key, logprobs in zip(keys, progress.logprobs, strict=False):
            if logprobs.token_ids:
                outputs.logprobs.setdefault(key, []).append(logprobs)
        for each in progress.finished:
            outputs.ends[each.group_id, each.sequence_index] = each.finish_reason
        outputs.hypotheses.update(progress.hypotheses)


@pytest.mark.budget
def test_drafts_change_nothing(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    expected = Run(tmp_path, 400).run()
    assert len({group_id for group_id, _ in expected.tokens}) > 0.9 * NUM_REQUESTS
    run = Run(tmp_path, 40, Random(1))
    assert run.run() == expected
    assert run.num_lost > 1
    assert run.scheduler.counters.preemptions > 10
    drafts = run.scheduler.speculation.counters
    assert drafts.draft_tokens > 5 * NUM_REQUESTS
    assert 0.1 < drafts.accepted_tokens / drafts.draft_tokens < 0.9
