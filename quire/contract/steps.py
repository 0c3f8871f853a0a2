"""What a scheduler orders its workers to do in a step, and what comes of it."""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field

from quire.contract.outputs import TokenLogprobs
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams

LEAST_ROW_LIMIT = 128
"""So many rows may sample in any step: those of few sequences leave room for their drafts."""


def max_sampled_rows(max_num_seqs: int) -> int:
    """Return how many rows of a step sample at most, those of drafts among them.

    Args:
        max_num_seqs: limit on the sequences of a step.
    """
    return max(max_num_seqs, LEAST_ROW_LIMIT)


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A sequence in full, as it stands before the step that brings it.

    Attributes:
        sequence_id: unique for the life of the scheduler.
        sequence_index: number within its group; part of the random counter.
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: tokens whose keys and values the blocks already hold.
        block_ids: its block table.
        sampling_params: of its request, with a seed.
        num_candidates: most probable tokens to report of a beam; 0 where a token is sampled.
        traceparent: W3C Trace Context of its request, for logs; "" for none.
        cache_salt: part of the hashes of its blocks.
        pooling_params: of a sequence that gets a vector once its last token is computed; None where
            it samples.
    """

    sequence_id: int
    sequence_index: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: Sequence[int]
    sampling_params: SamplingParams
    num_candidates: int = 0
    traceparent: str = ""
    cache_salt: bytes = b""
    pooling_params: PoolingParams | None = None


@dataclass(slots=True)
class SchedulerOutputs:
    """The orders of one step, applied in the order of the fields from `forks` to `replaced_blocks`.

    The scheduler builds the parallel arrays as lists. Workers turn each into a numpy array.

    Attributes:
        forks: (parent, child): the child becomes all that the parent is.
        chosen_tokens: (sequence, token): the token replaces the last one, as a beam search chose.
        released_sequence_ids: finished, aborted or preempted since the last step: forget them.
        new_sequences: sequences that the workers do not hold.
        blocks_to_swap_out: (device block, host block).
        blocks_to_swap_in: (host block, device block).
        blocks_to_copy: (source, destination), in order, before the forward pass.
        replaced_blocks: (sequence, place in its table, block): a copy takes the original's place.
        sequence_ids: the batch; parallel to the next two.
        num_scheduled_tokens: tokens that each sequence computes.
        num_new_blocks: how many of `new_block_ids` each sequence appends to its table.
        new_block_ids: of all sequences, one after the other.
        num_draft_slots: tokens that the worker may draft for each sequence and compute beside those
            that it is ordered to; parallel to `sequence_ids`, empty if there are none.
        epoch: of the scheduler; 0 until the step is sent.
        step_id: from 1, without gaps, in each stream; 0 until the step is sent.
        traceparent: W3C Trace Context of the scheduler's span of this step; "" for none.
    """

    forks: list[tuple[int, int]] = field(default_factory=list)
    chosen_tokens: list[tuple[int, int]] = field(default_factory=list)
    released_sequence_ids: list[int] = field(default_factory=list)
    new_sequences: list[SequenceState] = field(default_factory=list)
    blocks_to_swap_out: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_swap_in: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    replaced_blocks: list[tuple[int, int, int]] = field(default_factory=list)
    sequence_ids: list[int] = field(default_factory=list)
    num_scheduled_tokens: MutableSequence[int] = field(default_factory=list)
    num_new_blocks: MutableSequence[int] = field(default_factory=list)
    new_block_ids: MutableSequence[int] = field(default_factory=list)
    num_draft_slots: MutableSequence[int] = field(default_factory=list)
    epoch: int = 0
    step_id: int = 0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of some tokens of a prompt, one after the other.

    Attributes:
        first_position: index in the prompt of the first of them.
        logprobs: of each.
    """

    first_position: int
    logprobs: Sequence[TokenLogprobs]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a worker did in a step. Only rank 0 samples; others report the tokens they were told.

    Attributes:
        sequence_ids: sequences that got a token, in batch order; parallel to `token_ids`. One whose
            drafts were right got several, one after the other.
        token_ids: the tokens.
        failed_sequence_ids: sequences whose logits or vector were not finite; they got nothing, or
            only the tokens before the row that was not.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
        prompt_logprobs: (sequence, what was computed of its prompt) of those that asked for it.
        num_draft_tokens: tokens drafted for each sequence that had slots for them, in batch order.
        vectors: (sequence, vector as little-endian float32) of those that asked for one and had
            their last token computed.
        barred_sequence_ids: those of failed_sequence_ids whose requests left no token that could
            come next, whatever the logits.
        epoch: as ordered.
        step_id: as ordered.
        model_us: time of the forward pass.
        sample_us: time of sampling.
        worker_us: time that the model's thread, or the GPU, spent on the step.
        swap_us: time it took to move blocks between device and host, beside the model.
    """

    sequence_ids: Sequence[int]
    token_ids: Sequence[int]
    failed_sequence_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[tuple[int, PromptLogprobs]] = ()
    num_draft_tokens: Sequence[int] = ()
    vectors: Sequence[tuple[int, bytes]] = ()
    barred_sequence_ids: Sequence[int] = ()
    epoch: int = 0
    step_id: int = 0
    model_us: int = 0
    sample_us: int = 0
    worker_us: int = 0
    swap_us: int = 0


@dataclass(frozen=True, slots=True)
class StepGap:
    """A step did not follow the one before; the stream ends with this."""

    expected_step_id: int
    received_step_id: int


@dataclass(frozen=True, slots=True)
class MirroredSequence:
    """What a worker knows of a live sequence."""

    sequence_id: int
    num_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sequence_index: int = 0
