"""What a router and the scheduler of a cell send each other in a session."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError
from quire.contract.outputs import (
    CellState,
    FinishReason,
    Hypothesis,
    ModelInfo,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import PromptLogprobs
from quire.contract.time_breakdown import TimeBreakdown


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as a router submits it to a scheduler.

    Attributes:
        prompt_token_ids: of all its sequences; at least one.
        sampling_params: of all its sequences; with a seed if there are outputs.
        outputs: tokens that its sequences have produced under an earlier session, by index: they
            go on from there. Sequences that have ended are left out. None for a request that has
            not run yet.
        request_number: the router's name for it, unique in the session.
        request_id: for logs only.
        priority: smaller goes first.
        cache_salt: cached prefixes are shared within a salt only.
        traceparent: W3C Trace Context; "" for none.
        include_time_breakdown: report with every token where the time has gone.

    Raises:
        InvalidRequestError: there are outputs without a seed.
    """

    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    outputs: Mapping[int, Sequence[int]] | None = None
    request_number: int = 0
    request_id: str = ""
    priority: int = 0
    cache_salt: str = ""
    traceparent: str = ""
    include_time_breakdown: bool = False

    def __post_init__(self) -> None:
        if self.outputs and self.sampling_params.seed is None:
            raise InvalidRequestError("seed", "must be given with output_token_ids, got none")


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a router no longer wants; one message may hold many requests.

    Attributes:
        request_numbers: whole requests.
        sequences: (request number, sequence index) of single sequences; their requests go on.
    """

    request_numbers: list[int] = field(default_factory=list)
    sequences: list[tuple[int, int]] = field(default_factory=list)


RouterMessage = Submission | Cancellation


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message of a session: the cell can take requests.

    Attributes:
        model: that is served.
        cell_state: of the cell.
        block_hashes: short hashes of the blocks that can be found in the prefix cache.
    """

    model: ModelInfo
    cell_state: CellState
    block_hashes: Collection[int]


@dataclass(frozen=True, slots=True)
class Queued:
    """A request is queued, or was complete already.

    Attributes:
        request_number: of the request.
        seed: its own, or the one it was given.
    """

    request_number: int
    seed: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request is not taken: now (OverloadedError), ever (InvalidRequestError), or any more."""

    request_number: int
    error: OverloadedError | InvalidRequestError | DrainingError


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What a step brought to the requests of one session.

    Attributes:
        request_numbers: requests whose sequences got a token; parallel to the next two.
        sequence_indices: of those sequences.
        token_ids: the tokens.
        finished_request_numbers: requests whose sequences ended; parallel to the next two.
        finished_sequence_indices: of those sequences.
        finish_reasons: why.
        logprobs: parallel to `token_ids` if any of the requests asked for them, else empty.
        hypotheses: (request number, texts) of the beam searches that ended, best first.
        prompt_logprobs: (request number, what was computed of its prompt).
        time_breakdowns: (request number, its time so far) of those who asked for it.
    """

    request_numbers: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished_request_numbers: list[int] = field(default_factory=list)
    finished_sequence_indices: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    hypotheses: list[tuple[int, list[Hypothesis]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, PromptLogprobs]] = field(default_factory=list)
    time_breakdowns: list[tuple[int, TimeBreakdown]] = field(default_factory=list)

    def add_finished(self, number: int, sequence_index: int, reason: FinishReason) -> None:
        """A sequence of a request ended."""
        self.finished_request_numbers.append(number)
        self.finished_sequence_indices.append(sequence_index)
        self.finish_reasons.append(reason)


@dataclass(frozen=True, slots=True)
class PrefixDigestDelta:
    """How the blocks that can be found in the prefix cache have changed.

    Attributes:
        added: short hashes of blocks that can be found now.
        removed: of blocks that cannot be found any more; none of them is in `added`.
    """

    added: Sequence[int]
    removed: Sequence[int]


SessionEvent = Welcome | Queued | Refused | StepOutputs | CellState | PrefixDigestDelta


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where a worker is, as it reports to the scheduler of its cell.

    Attributes:
        rank: of the worker, in [0, tensor_parallel_size).
        address: "host:port" at which the scheduler reaches it.
        version: of its software.
    """

    rank: int
    address: str
    version: str
