"""What a router and the scheduler of a cell send each other in a session."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from quire.contract.errors import (
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    QuarantinedError,
)
from quire.contract.outputs import (
    CellState,
    FinishReason,
    Hypothesis,
    ModelInfo,
    TokenLogprobs,
)
from quire.contract.pooling_params import PoolingParams
from quire.contract.quotas import UNLIMITED, Quotas
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import PromptLogprobs
from quire.contract.time_breakdown import TimeBreakdown
from quire.contract.versions import PROTOCOL

# So far apart that shares stay finite, and counters exact.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6


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
        deadline_ms: how long its client still waits; None for ever.
        tenant: whose request it is; "" where that is not known.
        tenant_weight: of the tenant's share, in [1e-6, 1e6].
        was_queued: whether a scheduler has taken it before.
        suspect_until: it may have cost a cell its workers: as of Suspected; 0 if not.
        num_lost_alone: likewise.
        quotas: of the tenant.
        num_cells: that serve the model; each grants the tenant its part of the quotas.
        block_source: addresses of the workers of the cell that it was moved from, as of
            BlockSource; () where there is none to be asked.
        pooling_params: of a request for a vector; None where it is for tokens.

    Raises:
        InvalidRequestError: there are outputs without a seed, or beside a request for a vector, or
            the weight is out of bounds.
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
    deadline_ms: int | None = None
    tenant: str = ""
    tenant_weight: float = 1.0
    was_queued: bool = False
    suspect_until: int = 0
    num_lost_alone: int = 0
    quotas: Quotas = UNLIMITED
    num_cells: int = 1
    block_source: tuple[str, ...] = ()
    pooling_params: PoolingParams | None = None

    def __post_init__(self) -> None:
        if self.outputs and self.sampling_params.seed is None:
            raise InvalidRequestError("seed", "must be given with output_token_ids, got none")
        if self.pooling_params is not None and (self.outputs or self.sampling_params.width > 1):
            raise InvalidRequestError(
                "pooling_params", "must be absent with output_token_ids and with several outputs"
            )
        if not MIN_WEIGHT <= self.tenant_weight <= MAX_WEIGHT:
            raise InvalidRequestError(
                "tenant_weight",
                f"must be in [{MIN_WEIGHT:g}, {MAX_WEIGHT:g}], got {self.tenant_weight}",
            )


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a router no longer wants; one message may hold many requests.

    Attributes:
        request_numbers: whole requests.
        sequences: (request number, sequence index) of single sequences; their requests go on.
    """

    request_numbers: list[int] = field(default_factory=list)
    sequences: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life, both ways."""


RouterMessage = Submission | Cancellation | Heartbeat
RefusalError = (
    OverloadedError | InvalidRequestError | DrainingError | DeadlineExceededError | QuarantinedError
)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message of a session: the cell can take requests.

    Attributes:
        model: that is served.
        cell_state: of the cell.
        block_hashes: short hashes of the blocks that can be found in the prefix cache.
        protocol_version: of the scheduler.
    """

    model: ModelInfo
    cell_state: CellState
    block_hashes: Collection[int]
    protocol_version: int = PROTOCOL


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
    """A request is not taken: now (OverloadedError), ever (InvalidRequestError), or any more.

    One whose deadline has passed may have been queued before; one that is quarantined has been.
    """

    request_number: int
    error: RefusalError


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
        vectors: (request number, vector as little-endian float32) of requests for one, which have
            ended with it.
        cached_tokens: (request number, tokens of its prompt that were in the cache when it began).
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
    vectors: list[tuple[int, bytes]] = field(default_factory=list)
    cached_tokens: list[tuple[int, int]] = field(default_factory=list)

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


@dataclass(frozen=True, slots=True)
class Suspected:
    """The workers were lost while they computed a request: it may have been the cause.

    Wherever it is submitted next, it is computed alone until it has more tokens than it had then.

    Attributes:
        request_number: of the request.
        until: its tokens, prompt included, that were computed or in flight; at least 1.
        num_lost_alone: how often workers were lost while it was computed alone.
    """

    request_number: int
    until: int
    num_lost_alone: int = 0


@dataclass(frozen=True, slots=True)
class BlockSource:
    """Where other cells may fetch the blocks of requests that are to move.

    Attributes:
        worker_addresses: "host:port" of each worker, in order of rank.
    """

    worker_addresses: tuple[str, ...]


SessionEvent = (
    BlockSource
    | Welcome
    | Queued
    | Refused
    | Suspected
    | StepOutputs
    | CellState
    | PrefixDigestDelta
    | Heartbeat
)


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
