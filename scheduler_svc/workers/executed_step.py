"""Steps of a cell, as its workers are sent them and as they have run them."""

from dataclasses import dataclass

from quire.contract.steps import StepResult


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step that all workers have run.

    Attributes:
        result: of rank 0, which sampled.
        step_bytes: size of the message to one worker.
        elapsed_us: from before serialising the orders, or from reading the result of the step
            before if that was later, to reading the result.
        num_tokens: of its batch, drafts included.
        num_sequences: of its batch.
        num_swapped_blocks: moved beside it, either way.
    """

    result: StepResult
    step_bytes: int
    elapsed_us: int
    num_tokens: int
    num_sequences: int
    num_swapped_blocks: int


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step in flight: its number, what it moves and computes, when it was about to be sent."""

    step_id: int
    step_bytes: int
    started: float
    num_tokens: int
    num_sequences: int
    num_swapped_blocks: int
