"""What clients ask of a router, as it comes: no limit of the router or the model is checked yet."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    prompt: str | Sequence[int]
    sampling_params: SamplingParams
    request_id: str = ""
    model: str = ""
    priority: int = 0
    cache_salt: str = ""
    include_time_breakdown: bool = False


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
