"""What one step orders and what comes of it: the worker's domain, free of protobuf.

Per-token and per-block data are numpy arrays, because a step is applied with a handful of
vectorised operations, never with a loop over sequences.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.contract.outputs import TokenLogprobs
from quire.contract.sampling_params import SamplingParams

IntArray = npt.NDArray[np.int64]


def _no_pairs() -> IntArray:
    return np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A sequence in full, as it stands before the step that brings it.

    Attributes:
        sequence_id: unique in the life of a scheduler.
        token_ids: [num_tokens] prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: tokens whose keys and values the blocks already hold.
        block_ids: [num_blocks] its block table.
        sampling_params: how its tokens are chosen; `seed` is set.
        sequence_index: number within its group, part of the random counter.
        num_candidates: most probable tokens to report of a beam; 0 where a token is sampled.
        traceparent: W3C Trace Context of its request, for logs; "" for none.
    """

    sequence_id: int
    token_ids: IntArray
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: IntArray
    sampling_params: SamplingParams
    sequence_index: int
    num_candidates: int = 0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerOutputs:
    """The orders of one step.

    Applied in this order: fork, choose, release, add, swap out, swap in, copy, replace, run.

    Attributes:
        epoch: of the scheduler that gave the orders.
        step_id: from 1, without gaps, in each stream.
        released_sequence_ids: to forget.
        new_sequences: to add, in full.
        blocks_to_copy: [num_pairs, 2] source and destination, in order.
        sequence_ids: the batch.
        num_scheduled_tokens: [num_sequences] tokens to compute of each.
        num_new_blocks: [num_sequences] how many of `new_block_ids` each one's table gains.
        new_block_ids: [sum of num_new_blocks].
        forks: [num_forks, 2] parent and child: the child becomes all that the parent is.
        chosen_tokens: [n, 2] sequence and the token that takes the place of its last one.
        blocks_to_swap_out: [num_pairs, 2] device block and host block.
        blocks_to_swap_in: [num_pairs, 2] host block and device block.
        replaced_blocks: [n, 3] sequence, place in its table, block that takes this place.
        traceparent: W3C Trace Context of the scheduler's span of this step; "" for none.
    """

    epoch: int
    step_id: int
    released_sequence_ids: tuple[int, ...]
    new_sequences: tuple[SequenceState, ...]
    blocks_to_copy: IntArray
    sequence_ids: tuple[int, ...]
    num_scheduled_tokens: IntArray
    num_new_blocks: IntArray
    new_block_ids: IntArray
    forks: IntArray = field(default_factory=_no_pairs)
    chosen_tokens: IntArray = field(default_factory=_no_pairs)
    blocks_to_swap_out: IntArray = field(default_factory=_no_pairs)
    blocks_to_swap_in: IntArray = field(default_factory=_no_pairs)
    replaced_blocks: IntArray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of some tokens of a prompt, one after the other.

    Attributes:
        sequence_id: whose prompt.
        first_position: index in the prompt of the first of them.
        logprobs: of each.
    """

    sequence_id: int
    first_position: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the batch produced and what it cost.

    Attributes:
        sequence_ids: sequences that gained a token, in batch order.
        token_ids: the token of each.
        failed_sequence_ids: sequences whose logits were not finite; they gained none.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
        model_us: time of the forward pass.
        sample_us: time of sampling.
        swap_us: time it took to move blocks between device and host, beside the model.
        prompt_logprobs: of the sequences that asked for them and computed part of their prompt.
    """

    sequence_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    failed_sequence_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    model_us: int
    sample_us: int
    swap_us: int = 0
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a step, with what identifies the step.

    Attributes:
        epoch: as ordered.
        step_id: as ordered.
        outcome: tokens and times; no tokens on ranks above 0.
        worker_us: time that the model's thread, or the GPU, spent on the step.
    """

    epoch: int
    step_id: int
    outcome: StepOutcome
    worker_us: int


@dataclass(frozen=True, slots=True)
class StepGap:
    """A step did not follow the one before; the stream ends with this."""

    expected_step_id: int
    received_step_id: int


@dataclass(frozen=True, slots=True)
class MirroredSequence:
    """What the worker knows of a live sequence."""

    sequence_id: int
    num_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
