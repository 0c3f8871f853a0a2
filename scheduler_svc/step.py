"""What the scheduler orders for a step, and what comes of it; mirrors worker.proto."""

from dataclasses import dataclass, field

from quire.outputs import FinishReason, TokenLogprobs
from quire.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A sequence in full, for workers that do not hold it.

    Attributes:
        sequence_id: unique for the life of the scheduler.
        sequence_index: number within its group; part of the random counter.
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: tokens whose keys and values the blocks already hold.
        block_ids: its block table.
        sampling_params: of its request, with a seed.
    """

    sequence_id: int
    sequence_index: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sampling_params: SamplingParams


@dataclass(frozen=True, slots=True)
class SchedulerOutputs:
    """The orders of one step, applied in the order of the fields: release, add, copy, run.

    Attributes:
        released_sequence_ids: finished, aborted or preempted since the last step.
        new_sequences: admitted in this step, for the first time or again.
        blocks_to_copy: (source, destination), in order, before the forward pass.
        sequence_ids: the batch; parallel to the next two.
        num_scheduled_tokens: tokens each sequence computes.
        num_new_blocks: how many of `new_block_ids` each sequence appends to its table.
        new_block_ids: of all sequences, one after the other.
    """

    released_sequence_ids: list[int]
    new_sequences: list[SequenceState]
    blocks_to_copy: list[tuple[int, int]]
    sequence_ids: list[int]
    num_scheduled_tokens: list[int]
    num_new_blocks: list[int]
    new_block_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the workers sampled.

    Attributes:
        sequence_ids: sequences that got a token; parallel to `token_ids`.
        token_ids: the tokens.
        failed_sequence_ids: sequences that alone failed and got none.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
    """

    sequence_ids: list[int]
    token_ids: list[int]
    failed_sequence_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group that ended with a step."""

    group_id: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step means for the requests.

    Attributes:
        group_ids: groups that got a token; parallel to `token_ids`.
        token_ids: the tokens.
        finished: groups that ended.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
    """

    group_ids: list[int]
    token_ids: list[int]
    finished: list[FinishedGroup]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
