"""A scheduler for one ModelRunner in which tests choose what each step computes."""

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
import torch

from quire.contract.engine_options import LoadOptions
from quire.contract.outputs import TokenLogprobs
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import PromptLogprobs, SchedulerOutputs, SequenceState
from quire.contract.workers import LoadSpec
from worker_svc.device.base import Device
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.sampling.sampler import Sampled
from worker_svc.steps.batch import Batch
from worker_svc.steps.drafts import rows_that_count
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.runner import ModelRunner

# In the place of a token that was sampled and has not been reported yet.
PENDING = -1
NO_SLOTS: Mapping[int, int] = {}
GREEDY = SamplingParams(temperature=0.0, seed=0)


def load_runner(
    directory: Path,
    *,
    dtype: str = "auto",
    block_size: int = 16,
    num_blocks: int = 400,
    max_model_len: int | None = None,
    parallel: ParallelGroup | None = None,
    swap_space_bytes: int = 0,
    device: Device | None = None,
    max_num_seqs: int | None = None,
    enforce_eager: bool = False,
    invariant: bool = False,
    kv_cache_dtype: str = "auto",
    quantization: str = "none",
    draft_model: Path | None = None,
) -> ModelRunner:
    """A runner of one rank, alone unless `parallel` is given."""
    spec = LoadSpec(
        str(directory),
        LoadOptions(
            dtype=dtype,
            max_model_len=max_model_len,
            invariant=invariant,
            kv_cache_dtype=kv_cache_dtype,
            quantization=quantization,
            draft_model=str(draft_model or ""),
        ),
    )
    loaded = load_model(spec, "test", parallel or ParallelGroup(), device)
    runner = ModelRunner(
        loaded,
        block_size,
        num_blocks,
        swap_space_bytes,
        max_num_seqs,
        enforce_eager=enforce_eager,
    )
    runner.capture_graphs()
    return runner


class Driver:
    """Gives orders as a scheduler would, with blocks handed out in a scattered order.

    Attributes:
        tokens: of every live sequence, prompt and output.
        logits: of the last step, by sequence.
        logprobs: of the last step, by sequence that asked.
        prompt_logprobs: of the last step.
        vectors: of the last step, by sequence that asked, as bytes.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.tokens: dict[int, list[int]] = {}
        self.logits: dict[int, torch.Tensor] = {}
        self.logprobs: dict[int, TokenLogprobs] = {}
        self.prompt_logprobs: Sequence[tuple[int, PromptLogprobs]] = ()
        self.vectors: dict[int, bytes] = {}
        self._computed: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}
        self._new: list[SequenceState] = []
        self._released: list[int] = []
        self._params: dict[int, SamplingParams] = {}
        self._pooling: dict[int, PoolingParams | None] = {}
        self._swapped_out: list[tuple[int, int]] = []
        self._swapped_in: list[tuple[int, int]] = []
        order = np.random.default_rng(0).permutation(runner.cache_engine.num_blocks)
        self._free = order.tolist()
        self._step_id = 0
        self._keep_logits()

    def _keep_logits(self) -> None:
        """Let `logits` be those that the runner samples from, rules applied."""
        sample = self.runner.sampler.sample

        def sample_and_keep(
            batch: Batch,
            hidden: torch.Tensor,
            logits: torch.Tensor,
            columns: dict[str, torch.Tensor],
        ) -> Sampled:
            sampled = sample(batch, hidden, logits, columns)
            self.logits = dict(zip(batch.sampling_ids, logits.cpu().clone(), strict=True))
            return sampled

        self.runner.sampler.sample = sample_and_keep  # type: ignore[method-assign]

    def add(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        params: SamplingParams = GREEDY,
        num_prompt_tokens: int | None = None,
        pooling: PoolingParams | None = None,
    ) -> None:
        """Hand a sequence over in full, with nothing computed, at the next step.

        Args:
            sequence_id: not held now.
            tokens: prompt and output.
            params: of its request.
            num_prompt_tokens: how many of `tokens` are the prompt; None for all.
            pooling: of one that gets a vector.
        """
        self.tokens[sequence_id] = list(tokens)
        self._computed[sequence_id] = 0
        self._blocks[sequence_id] = []
        self._params[sequence_id] = params
        self._pooling[sequence_id] = pooling
        self._hand_over(sequence_id, num_prompt_tokens or len(tokens))

    def release(self, sequence_id: int) -> list[int]:
        """Let a sequence go and return its tokens."""
        self._released.append(sequence_id)
        self._free.extend(self._blocks.pop(sequence_id))
        del self._computed[sequence_id]
        return self.tokens.pop(sequence_id)

    def swap(self, sequence_id: int) -> None:
        """Move a sequence to host blocks 0, 1 ... and back to other blocks, at the next step."""
        old_blocks = self._blocks[sequence_id]
        new_blocks = [self._free.pop() for _ in old_blocks]
        self._swapped_out += [(block, host) for host, block in enumerate(old_blocks)]
        self._swapped_in += list(enumerate(new_blocks))
        self._free.extend(old_blocks)
        self._blocks[sequence_id] = new_blocks
        self._released.append(sequence_id)
        self._hand_over(sequence_id, len(self.tokens[sequence_id]))

    def _hand_over(self, sequence_id: int, num_prompt_tokens: int) -> None:
        self._new.append(
            SequenceState(
                sequence_id,
                0,
                tuple(self.tokens[sequence_id]),
                num_prompt_tokens,
                self._computed[sequence_id],
                tuple(self._blocks[sequence_id]),
                self._params[sequence_id],
                pooling_params=self._pooling[sequence_id],
            )
        )

    def num_left(self, sequence_id: int) -> int:
        """Tokens of a sequence that are not computed."""
        return len(self.tokens[sequence_id]) - self._computed[sequence_id]

    def step(self, scheduled: Mapping[int, int] | None = None) -> dict[int, int]:
        """Run a step and return the sampled tokens.

        Args:
            scheduled: tokens to compute by sequence; None computes all that are left of all.
        """
        return self.finish(self.start(scheduled))

    def start(
        self,
        scheduled: Mapping[int, int] | None = None,
        draft_slots: Mapping[int, int] = NO_SLOTS,
    ) -> PendingStep:
        """Start a step, perhaps before the one before it has been finished.

        Args:
            scheduled: tokens to compute by sequence; None computes all that are left of all.
            draft_slots: tokens that may be drafted, by sequence.
        """
        if scheduled is None:
            scheduled = {each: self.num_left(each) for each in self.tokens}
        self._step_id += 1
        block_size = self.runner.cache_engine.block_size
        new_blocks: list[list[int]] = []
        for sequence_id, count in scheduled.items():
            held = self._blocks[sequence_id]
            end = self._computed[sequence_id] + count + draft_slots.get(sequence_id, 0)
            needed = -(-end // block_size) - len(held)
            new_blocks.append([self._free.pop() for _ in range(needed)])
            held.extend(new_blocks[-1])
            self._computed[sequence_id] += count
        outputs = SchedulerOutputs(
            released_sequence_ids=self._released,
            new_sequences=self._new,
            blocks_to_swap_out=self._swapped_out,
            blocks_to_swap_in=self._swapped_in,
            sequence_ids=list(scheduled),
            num_scheduled_tokens=list(scheduled.values()),
            num_new_blocks=[len(blocks) for blocks in new_blocks],
            new_block_ids=[block for blocks in new_blocks for block in blocks],
            num_draft_slots=[draft_slots.get(each, 0) for each in scheduled] if draft_slots else [],
            epoch=1,
            step_id=self._step_id,
        )
        self._new, self._released = [], []
        self._swapped_out, self._swapped_in = [], []
        for sequence_id in scheduled:
            is_last = self._computed[sequence_id] == len(self.tokens[sequence_id])
            if is_last and self._pooling[sequence_id] is None:
                self.tokens[sequence_id].append(PENDING)
        return self.runner.execute(outputs)

    def finish(self, step: PendingStep) -> dict[int, int]:
        """Wait for a step, the first of those started, and return the last sampled tokens."""
        result = step.result()
        self.runner.mirror.check_invariants()
        assert not result.failed_sequence_ids
        self.prompt_logprobs = result.prompt_logprobs
        self.vectors = dict(result.vectors)
        logprobs = zip(result.sequence_ids, result.logprobs, strict=False)
        self.logprobs = {each: found for each, found in logprobs if found.token_ids}
        # Not the result's, which ranks above 0 leave empty.
        token_ids, ok = step.sampled()
        expected_ids = step.batch.expected_ids
        counts = ok if expected_ids is None else rows_that_count(expected_ids, token_ids, ok)
        sampled: dict[int, int] = {}
        found = zip(step.batch.sampling_ids, token_ids.tolist(), strict=True)
        for sequence_id, token_id in compress(found, counts):
            tokens = self.tokens[sequence_id]
            if sequence_id in sampled:
                self._computed[sequence_id] += 1
                tokens.append(token_id)
            else:
                tokens[tokens.index(PENDING)] = token_id
            sampled[sequence_id] = token_id
        return sampled

    def generate(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, *, ahead: bool = False
    ) -> list[list[int]]:
        """Return the greedy continuations of prompts that run together from the first step.

        Args:
            prompts: of the sequences 0, 1 ...
            num_tokens: of each continuation.
            ahead: whether each step is started before the one before it is finished.
        """
        for sequence_id, prompt in enumerate(prompts):
            self.add(sequence_id, prompt)
        under_way: list[PendingStep] = []
        for _ in range(num_tokens):
            under_way.append(self.start())
            if not ahead or len(under_way) > 1:
                self.finish(under_way.pop(0))
        for step in under_way:
            self.finish(step)
        return [
            self.tokens[sequence_id][len(prompt) :] for sequence_id, prompt in enumerate(prompts)
        ]
