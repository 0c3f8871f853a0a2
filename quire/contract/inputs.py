"""What clients ask of a router, as it comes: no limit of the router or the model is checked yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateInput:
    """A request for text.

    Attributes:
        prompt: text or token ids; "" for none.
        sampling_params: within their own bounds, which know nothing of the model's.
        request_id: "" has the router make one.
        model: "" for the only one that is served.
        priority: smaller goes first.
        cache_salt: cached prefixes are shared within a salt only.
        include_time_breakdown: report at the end where the time went.
        include_prompt_token_ids: report the prompt's token ids at the start.
        heartbeat_ms: send a heartbeat when nothing else was sent for so long; None sends none.
        resumable: run on for a grace time where the stream breaks.
        pooling_params: where a vector is wanted, and no text; set by routers alone.
    """

    prompt: str | Sequence[int]
    sampling_params: SamplingParams
    request_id: str = ""
    model: str = ""
    priority: int = 0
    cache_salt: str = ""
    include_time_breakdown: bool = False
    include_prompt_token_ids: bool = False
    heartbeat_ms: int | None = None
    resumable: bool = False
    pooling_params: PoolingParams | None = None


@dataclass(frozen=True, slots=True)
class ReceivedOutput:
    """What a client has of one output, over all streams of its request.

    Attributes:
        index: which of the n outputs.
        token_ids: in their order.
        num_text_bytes: length of its text in UTF-8.
        ended: its end was received.
        cumulative_logprob: sum over the tokens; None where they came without log-probabilities.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    num_text_bytes: int = 0
    ended: bool = False
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class ResumeInput:
    """A request whose stream broke.

    Attributes:
        request: as it was sent, with the request id and the max_tokens of Started.
        seed: of Started; None for none.
        numerics_id: of Started.
        text_id: of Started.
        received: outputs of which something was received.
        num_prompt_logprobs: positions of the prompt whose log-probabilities were received.
    """

    request: GenerateInput
    seed: int | None
    numerics_id: str = ""
    text_id: str = ""
    received: tuple[ReceivedOutput, ...] = ()
    num_prompt_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class ReplayInput(ResumeInput):
    """A request whose client knows how much it received and kept none of it: it begins anew.

    As a ResumeInput of which nothing was received, but with the max_tokens that the client sent.

    Attributes:
        sampling_defaults: of Started; None for what this router fills in.
    """

    sampling_defaults: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class TokenizeInput:
    """A text whose token ids are asked for.

    Attributes:
        text: to tokenize.
        model: "" for the only one that is served.
        add_special_tokens: whether to add the tokens that the model expects around a prompt.
    """

    text: str
    model: str = ""
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class DetokenizeInput:
    """Token ids whose text is asked for.

    Attributes:
        token_ids: to detokenize.
        model: "" for the only one that is served.
        skip_special_tokens: whether to leave special tokens out of the text.
    """

    token_ids: Sequence[int]
    model: str = ""
    skip_special_tokens: bool = True
