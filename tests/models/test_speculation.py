"""A thousand requests of every sampling mode, drafted for in each step, preempted and killed.

Drafts come from the sequence itself, from a model of other weights, or from the model itself.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from random import Random

import pytest

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import FinishReason, Hypothesis, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs, StepResult
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
        draft_model: directory; None drafts by prompt lookup.
        modes: parameters of requests, in turn.
        eos_token_id: of the model.
    """

    def __init__(
        self,
        model: Path,
        num_blocks: int,
        draws: Random | None = None,
        draft_model: Path | None = None,
        modes: Sequence[SamplingParams] = MODES,
        eos_token_id: int = EOS_TOKEN_ID,
    ) -> None:
        self._draws = draws
        self._modes = modes
        self._runner = load_runner(
            model,
            block_size=8,
            num_blocks=num_blocks,
            swap_space_bytes=2**20,
            max_num_seqs=24,
            draft_model=draft_model,
        )
        blocks = BlockSpaceManager(8, num_blocks, 0.0, self._runner.cache_engine.num_host_blocks)
        self.scheduler = Scheduler(
            blocks,
            max_num_batched_tokens=64,
            max_num_seqs=24,
            max_model_len=80,
            eos_token_ids=(eos_token_id,),
            enable_prefix_caching=draws is not None,
            preemption_mode=PreemptionMode.AUTO,
            max_draft_tokens=0 if draws is None else 8,
        )
        self.scheduler.preemption_costs.block_us = 15.0
        if draws is not None:
            self.scheduler.speculation.plan = self._plan  # type: ignore[method-assign]
        self.num_lost = 0
        self._greedy_ids: set[int] = set()
        self.greedy_drafts = Counter[str]()
        self.outputs = Outputs()
        self._under_way: deque[tuple[SchedulerOutputs, PendingStep]] = deque()

    def _plan(self, sequence_ids: list[int], max_slots: int) -> dict[int, int]:
        """Slots for most sequences in most steps."""
        draws = self._draws
        assert draws is not None
        return {} if draws.random() < 0.1 else {each: draws.randint(1, 8) for each in sequence_ids}

    def run(self, num_requests: int = NUM_REQUESTS) -> Outputs:
        for index, mode in enumerate(islice(cycle(self._modes), num_requests)):
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
        self._count_greedy_drafts(orders, result)
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

    def _count_greedy_drafts(self, orders: SchedulerOutputs, result: StepResult) -> None:
        """Count the drafts of sequences without randomness and rules, and the right ones."""
        for state in orders.new_sequences:
            if state.sampling_params.temperature == 0:
                self._greedy_ids.add(state.sequence_id)
        num_tokens = Counter(result.sequence_ids)
        slots = zip(orders.sequence_ids, orders.num_draft_slots, strict=False)
        had_slots = [sequence_id for sequence_id, num_slots in slots if num_slots]
        for each, num_drafted in zip(had_slots, result.num_draft_tokens, strict=True):
            if each in self._greedy_ids:
                self.greedy_drafts["drafted"] += num_drafted
                self.greedy_drafts["right"] += num_tokens[each] - 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    """Draft models: none, the model itself, and one of other weights and a smaller vocabulary."""
    own, other = (tmp_path_factory.mktemp(name) for name in ("own", "other"))
    save_model(own, llama_config())
    save_model(other, llama_config(num_hidden_layers=1, hidden_size=32, vocab_size=FEW[-1] + 2))
    return {"lookup": None, "own": own, "other": other}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> Outputs:
    return Run(models["own"], 400).run()


@pytest.mark.budget
@pytest.mark.parametrize("drafter", ["lookup", "own", "other"])
def test_drafts_change_nothing(
    drafter: str, models: dict[str, Path | None], expected: Outputs
) -> None:
    assert len({group_id for group_id, _ in expected.tokens}) > 0.9 * NUM_REQUESTS
    assert models["own"] is not None
    run = Run(models["own"], 40, Random(1), models[drafter])
    assert run.run() == expected
    assert run.num_lost > 1
    assert run.scheduler.counters.preemptions > 10
    drafts = run.scheduler.speculation.counters
    assert drafts.draft_tokens > 5 * NUM_REQUESTS
    least = {"lookup": 0.1, "own": 0.05, "other": 0.0}[drafter]
    assert least < drafts.accepted_tokens / drafts.draft_tokens < 0.9
    if drafter != "lookup":
        # What the model itself drafts is right, also after a preemption, a loss, a prefix hit.
        greedy = run.greedy_drafts
        assert greedy["drafted"] > NUM_REQUESTS / 2
        assert (greedy["right"] == greedy["drafted"]) == (drafter == "own")
