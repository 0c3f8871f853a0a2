"""Schedulers, requests and a loop over the fake model, for tests without sockets."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.contract.engine_options import PreemptionMode
from quire.contract.outputs import FinishReason, Hypothesis
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.contract.time_breakdown import TimeBreakdown
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.outstanding import outstanding_tokens
from scheduler_svc.policy.progress import GroupTime, Progress
from scheduler_svc.policy.scheduler import Scheduler
from scheduler_svc.policy.trials import Verdict
from tests.fakes.fake_model import FakeModel, fake_generate

VOCAB_SIZE = 97
EOS_TOKEN_ID = 3
NO_ORDERS = SchedulerOutputs()


def make_params(
    *,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 7,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = True,
    **others: Any,
) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        **others,
    )


def make_prompt(num_tokens: int, first: int = 5) -> list[int]:
    return [(first + 7 * i) % VOCAB_SIZE for i in range(num_tokens)]


def reference(prompt: list[int], **kwargs: object) -> list[int]:
    """Return the tokens that a request of these parameters must get."""
    return fake_generate(
        prompt,
        make_params(**kwargs),  # type: ignore[arg-type]
        vocab_size=VOCAB_SIZE,
        max_model_len=128,
        eos_token_ids=(EOS_TOKEN_ID,),
    )


class Cell:
    """A scheduler and the fake model that obeys it; checks invariants after every step.

    Attributes:
        outputs: tokens of every sequence so far, by group and index.
        ends: of the sequences that have ended.
        hypotheses: of the beam searches that have ended, by group.
        reported_prompts: tokens of each prompt that log-probabilities came for, from its second on.
        vectors: of the groups that asked for one and have ended.
        ended: groups that have ended.
        now: time that is given to the scheduler, in seconds.
        times: of the groups that have ended.
        time_breakdowns: of the groups that asked for theirs, as reported last.

    Args:
        max_steps_in_flight: 2 has each step scheduled before the result of the one before it.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        watermark: float = 0.0,
        max_num_batched_tokens: int = 64,
        max_num_seqs: int = 16,
        max_model_len: int = 128,
        vocab_size: int = VOCAB_SIZE,
        max_steps_in_flight: int = 1,
        enable_prefix_caching: bool = False,
        num_host_blocks: int = 0,
        preemption_mode: PreemptionMode = PreemptionMode.AUTO,
        max_draft_tokens: int = 0,
    ) -> None:
        self.blocks = BlockSpaceManager(block_size, num_blocks, watermark, num_host_blocks)
        self.scheduler = Scheduler(
            self.blocks,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            eos_token_ids=(EOS_TOKEN_ID,),
            enable_prefix_caching=enable_prefix_caching,
            preemption_mode=preemption_mode,
            max_draft_tokens=max_draft_tokens,
        )
        # Without it, none are tried.
        self.scheduler.speculation.observe_step(1, 100.0, has_slots=False)
        self.model = FakeModel(block_size, num_blocks, vocab_size, num_host_blocks)
        self.outputs: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], FinishReason] = {}
        self.hypotheses: dict[int, list[Hypothesis]] = {}
        self.reported_prompts: dict[int, list[int]] = {}
        self.vectors: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.now = 0.0
        self.times: dict[int, GroupTime] = {}
        self.time_breakdowns: dict[int, TimeBreakdown] = {}
        self.num_steps = 0
        self._max_steps_in_flight = max_steps_in_flight
        self._max_model_len = max_model_len
        self._results: deque[StepResult] = deque()

    @property
    def tokens(self) -> dict[int, list[int]]:
        """Output of the first sequence of each group."""
        return {group_id: tokens for (group_id, index), tokens in self.outputs.items() if not index}

    @property
    def finished(self) -> dict[int, FinishReason]:
        """How the first sequence of each group has ended."""
        return {group_id: reason for (group_id, index), reason in self.ends.items() if not index}

    def add(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        output_token_ids: tuple[int, ...] = (),
        outputs: Mapping[int, Sequence[int]] | None = None,
        now: float = 0.0,
        **options: Any,
    ) -> int:
        params = params or make_params()
        # As a router does: to what the model's length leaves.
        room = self._max_model_len - len(prompt)
        if params.max_tokens is not None and 0 < room < params.max_tokens:
            params = replace(params, max_tokens=room)
        if output_token_ids:
            outputs = {0: output_token_ids}
        group_id, progress = self.scheduler.add(Submission(prompt, params, outputs, **options), now)
        for index in range(params.width):
            self.outputs[group_id, index] = []
        self.take(progress)
        return group_id

    def step(self) -> SchedulerOutputs:
        """Send steps until one more would be too many in flight, then take the oldest result.

        Returns:
            Orders of the last step sent.
        """
        sent = None
        while len(self._results) < self._max_steps_in_flight:
            outputs = self.scheduler.schedule(self.now)
            self.scheduler.check_invariants()
            if outputs is None and self._results:
                break
            if outputs is not None:
                sent = outputs
                self._results.append(self.model.step(outputs))
        result = self._results.popleft()
        self.take(self.scheduler.update(result, self.now))
        num_tokens = len(result.sequence_ids) + sum(result.num_draft_tokens)
        self.scheduler.speculation.observe_step(
            num_tokens, 100 + num_tokens, has_slots=bool(result.num_draft_tokens)
        )
        self.scheduler.check_invariants()
        self.num_steps += 1
        return sent or NO_ORDERS

    def lose_workers(self, has_failed: bool = False) -> Verdict:
        """Everything the workers knew is gone, results in flight included."""
        verdict = self.scheduler.preempt_all(self.now, has_failed)
        self.model.sequences.clear()
        self._results.clear()
        return verdict

    def take(self, progress: Progress) -> None:
        tokens = zip(progress.group_ids, progress.sequence_indices, progress.token_ids, strict=True)
        for group_id, index, token_id in tokens:
            assert group_id not in self.ended
            self.outputs[group_id, index].append(token_id)
        for group_id, part in progress.prompt_logprobs:
            reported = self.reported_prompts.setdefault(group_id, [])
            num_again = len(reported) - (part.first_position - 1)
            assert num_again >= 0, f"positions before {part.first_position} are missing"
            reported += [each.token_ids[0] for each in part.logprobs[num_again:]]
        for finished in progress.finished:
            key = finished.group_id, finished.sequence_index
            assert key not in self.ends
            self.ends[key] = finished.finish_reason
        self.hypotheses.update(progress.hypotheses)
        assert self.vectors.keys().isdisjoint(group_id for group_id, _ in progress.vectors)
        self.vectors.update(progress.vectors)
        assert self.ended.isdisjoint(progress.ended_group_ids)
        self.ended.update(progress.ended_group_ids)
        self.times.update(progress.times)
        self.time_breakdowns.update(progress.time_breakdowns)

    @property
    def outstanding_tokens(self) -> int:
        """Work that the cell reports."""
        return outstanding_tokens(self.scheduler.queues, self.scheduler.prefix_cache)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to schedule, or a step in flight."""
        return self.scheduler.has_unfinished or bool(self._results)

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.has_work:
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")
