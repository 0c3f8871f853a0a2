"""The orders of a step and what the workers sampled; mirrors worker.proto."""

from dataclasses import dataclass, field

from quire.contract.outputs import TokenLogprobs
from quire.contract.sampling_params import SamplingParams


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
        num_candidates: most probable tokens to report instead of choosing one, for beams; else 0.
        traceparent: W3C Trace Context of its request, for logs; "" for none.
    """

    sequence_id: int
    sequence_index: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sampling_params: SamplingParams
    num_candidates: int = 0
    traceparent: str = ""


@dataclass(slots=True)
class SchedulerOutputs:
    """The orders of one step, applied in the order of the fields.

    Attributes:
        forks: (parent, child): the child is all that the parent is, from now on for itself.
        chosen_tokens: (sequence, token) to take the place of the last token: what a beam chose.
        released_sequence_ids: finished, aborted or preempted since the last step.
        new_sequences: sequences the workers do not hold.
        blocks_to_swap_out: (device block, host block).
        blocks_to_swap_in: (host block, device block).
        blocks_to_copy: (source, destination), in order, before the forward pass.
        replaced_blocks: (sequence, place in its table, block): a copy takes the original's place.
        sequence_ids: the batch; parallel to the next two.
        num_scheduled_tokens: tokens each sequence computes.
        num_new_blocks: how many of `new_block_ids` each sequence appends to its table.
        new_block_ids: of all sequences, one after the other.
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
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_new_blocks: list[int] = field(default_factory=list)
    new_block_ids: list[int] = field(default_factory=list)


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
    logprobs: list[TokenLogprobs]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the workers sampled.

    Attributes:
        sequence_ids: sequences that got a token; parallel to `token_ids`.
        token_ids: the tokens.
        failed_sequence_ids: sequences that alone failed and got none.
        logprobs: parallel to `token_ids` if any of the sequences asked for them, else empty.
        prompt_logprobs: of the sequences that asked for them and computed part of their prompt.
    """

    sequence_ids: list[int]
    token_ids: list[int]
    failed_sequence_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
