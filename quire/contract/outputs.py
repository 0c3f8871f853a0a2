"""What the services and the SDK hand to their callers: frozen domain objects, free of protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from quire.contract.chat import ToolCall
from quire.contract.errors import (
    InvalidRequestError,
    NotFiniteError,
    NoTokenError,
    QuireError,
)
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.contract.time_breakdown import TimeBreakdown
from quire.contract.versions import PROTOCOL

# What a sequence that decodes adds to a cell's outstanding tokens: how long it will go on is not
# known, and a token of it takes less than a step of its own.
TOKENS_OF_DECODING = 64


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    NO_TOKEN = "no_token"

    @property
    def shown(self) -> str:
        """Its name in answers of APIs that know one failure."""
        reason = FinishReason.ERROR if self is FinishReason.NO_TOKEN else self
        return str(reason.value)

    @property
    def error(self) -> QuireError | None:
        """Why the request failed; None where it did not."""
        match self:
            case FinishReason.ERROR:
                return NotFiniteError()
            case FinishReason.NO_TOKEN:
                return NoTokenError()
            case _:
                return None


@dataclass(frozen=True, slots=True)
class ModelIds:
    """What must be equal where a stream is to go on.

    Attributes:
        numerics_id: see ModelInfo.
        text_id: see ModelInfo.
    """

    numerics_id: str
    text_id: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a served model is.

    Attributes:
        name: name that requests use.
        architecture: Hugging Face architecture, e.g. "LlamaForCausalLM".
        dtype: "float32", "bfloat16" or "float16".
        vocab_size: token ids are in [0, vocab_size).
        max_model_len: largest number of tokens, prompt and output, of one sequence.
        eos_token_ids: end-of-text ids.
        num_parameters: over all ranks.
        numerics_id: cells with the same one give the same tokens, to the bit; "" where nothing
            is promised: on a GPU without `invariant`, and of a model that `transformers` runs if
            its bits were seen to depend on more than its tokens.
        text_id: digest of tokenizer and chat template: from workers those of the model directory,
            "" if it has none; from routers those in use.
        quantization: how attention and MLPs hold their weights; "none", "w8a8", "w8", "w4"
            or "stored".
        embedding_size: elements of a vector that a request for one gets; 0 where none is computed,
            by workers of an earlier release.
        is_matryoshka: whether the first elements of a vector are one, too: as many as
            matryoshka_dimensions say, or any number if there are none.
        matryoshka_dimensions: see there.
        vectors_only: whether it has no language-model head: it generates no text.
        aliases: other names that requests may use.
    """

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    numerics_id: str = ""
    text_id: str = ""
    quantization: str = "none"
    embedding_size: int = 0
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    vectors_only: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def ids(self) -> ModelIds:
        """What must be equal where a stream is to go on."""
        return ModelIds(self.numerics_id, self.text_id)

    def has_name(self, name: str) -> bool:
        """Return whether a request that names this model so may run on it; "" names any."""
        return name in ("", self.name, *self.aliases)

    def check_generates(self) -> None:
        """Check that the model generates text.

        Raises:
            InvalidRequestError: it gives vectors only.
        """
        if self.vectors_only:
            raise InvalidRequestError(
                "model",
                f"must be one that generates text, got {self.name}: {self.architecture} has no "
                "language-model head, and gives vectors only",
            )


@dataclass(frozen=True, slots=True)
class CellState:
    """Live state of a cell. `*_total` fields only grow while `epoch` stays the same."""

    epoch: int = 0
    num_waiting: int = 0
    num_running: int = 0
    block_size: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    steps_total: int = 0
    tokens_total: int = 0
    preemptions_total: int = 0
    step_bytes_total: int = 0
    schedule_us_total: int = 0
    wire_us_total: int = 0
    model_us_total: int = 0
    sample_us_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    num_idle_slots: int = 0
    num_blocks_saved: int = 0
    num_swapped: int = 0
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
    swapped_out_blocks_total: int = 0
    swapped_in_blocks_total: int = 0
    recomputed_tokens_total: int = 0
    swap_us_total: int = 0
    outstanding_tokens: int = 0
    draining: bool = False
    draft_tokens_total: int = 0
    accepted_draft_tokens_total: int = 0
    workers_lost: bool = False
    max_num_seqs: int = 0
    moving: bool = False
    kv_cache_bytes: int = 0

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may be placed there."""
        return not (self.draining or self.workers_lost)

    @property
    def hands_over(self) -> bool:
        """Whether what it has is to go on at other cells, where they may continue it."""
        return self.moving or self.workers_lost


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell as a router sees it.

    Attributes:
        address: of the cell's scheduler.
        connected: False while the router has no session with it; the rest is then the last known.
        model: None until the first session.
        state: zeros until the first session.
    """

    address: str
    connected: bool
    model: ModelInfo | None
    state: CellState


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position of the output, in the model's own distribution.

    Attributes:
        token_ids: the token that was sampled, then the most probable ones, best first.
        logprobs: of each, natural logarithm.
        sampled_rank: place of the sampled token among all, 1 for the most probable.
        texts: what each token reads as on its own, U+FFFD for part of a character; empty until a
            router adds them.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    sampled_rank: int = 0
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete text that a beam search has found.

    Attributes:
        token_ids: of the output.
        cumulative_logprob: sum over them.
        finish_reason: STOP or LENGTH.
        logprobs: parallel to `token_ids` if the request asked for them, else empty.
    """

    token_ids: tuple[int, ...]
    cumulative_logprob: float
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream.

    Attributes:
        request_id: the client's, or the one the router made.
        num_prompt_tokens: after tokenization.
        seed: send it again to get the same tokens, from cells of the same numerics_id.
        numerics_id: of every cell that computes this stream; "" if its tokens may change where it
            is continued. See ModelInfo.
        text_id: of the tokenizer in use.
        prompt_token_ids: if the request asked for them, else empty.
        max_tokens: at which an output ends.
        protocol_version: of the router.
        structured_outputs: beside prompt_token_ids, the grammar of the output: that of the request,
            or what a chat's tool_choice became.
        sampling_defaults: what the router filled in of the sampling parameters, by name.
    """

    request_id: str
    num_prompt_tokens: int
    seed: int
    numerics_id: str = ""
    text_id: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    max_tokens: int = 0
    protocol_version: int = PROTOCOL
    structured_outputs: StructuredOutputsParams | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call.

    Attributes:
        index: of the call, from 0, among those of its output.
        id: that the tool's answer refers to; "" but at the beginning.
        name: of the tool; "" but at the beginning.
        arguments: all of them, one after the other, are a JSON object.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """What the next text of an output means.

    Attributes:
        reasoning: before the answer.
        content: of the answer.
        tool_calls: in their order.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new since the last one; `text` and `token_ids` need not advance together.

    Attributes:
        text: may be empty.
        token_ids: may be empty.
        logprobs: parallel to `token_ids` if the request asked for them, else empty.
        index: which of the n outputs.
        prompt_logprobs: of the next tokens of the prompt, from its second one on.
        texts: the part of `text` that each token brought, parallel to `token_ids`; what is left of
            `text` came with the end of the output. Known in a router alone.
        parsed: what is known to be meant since the last one, of a chat with parse_output; None for
            nothing.
        num_cached_tokens: of Finished. Known in a router alone.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    index: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    texts: tuple[str, ...] = field(default=(), compare=False)
    parsed: ParsedOutput | None = None
    num_cached_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of an output; a stream ends with the last of its n.

    Attributes:
        finish_reason: why it ended.
        num_output_tokens: generated, an end-of-text token included.
        stop_str: the stop string that ended the text, if one did.
        index: which of the n outputs.
        cumulative_logprob: sum over the output's tokens, where it is known.
        time_breakdown: of the whole request if it asked for it; with the last of its outputs to be
            told.
        parsed: as of Delta: what is known to be meant now that no text follows.
        vector: of a request for one, as little-endian float32. Known in a router alone.
        num_cached_tokens: of the prompt, that the prefix cache had when the request began.
    """

    finish_reason: FinishReason
    num_output_tokens: int
    stop_str: str | None = None
    index: int = 0
    cumulative_logprob: float | None = None
    time_breakdown: TimeBreakdown | None = None
    parsed: ParsedOutput | None = None
    vector: bytes | None = None
    num_cached_tokens: int = 0


Event = Started | Delta | Finished


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole output, as the non-streaming calls of the SDK return it.

    Attributes:
        request_id: the client's, or the one the router made.
        text: of the output.
        token_ids: of the output.
        finish_reason: why it ended.
        num_prompt_tokens: after tokenization.
        seed: send it again to get the same tokens, from cells of the same numerics_id.
        stop_str: the stop string that ended the text, if one did.
        logprobs: parallel to `token_ids` if the request asked for them, else empty.
        index: which of the n outputs.
        cumulative_logprob: sum over the output's tokens, where it is known.
        prompt_logprobs: of each token of the prompt but the first, if the request asked for them.
        time_breakdown: of the whole request, if it asked for it.
        num_cached_tokens: as of Finished.
        numerics_id: of the cells that computed it, see Started.
        text_id: of the tokenizer in use.
        prompt_token_ids: of a chat, or where the request asked for them.
        content: of a chat with parse_output, what is neither reasoning nor a call; else None.
        reasoning: of such a chat, what the assistant thought before it answered.
        tool_calls: of such a chat, those that it has decided on.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    seed: int
    stop_str: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    index: int = 0
    cumulative_logprob: float | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    time_breakdown: TimeBreakdown | None = None
    num_cached_tokens: int = field(default=0, compare=False)
    numerics_id: str = ""
    text_id: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    content: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
