"""How a request's tokens are chosen and when they end."""

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field

from quire.errors import InvalidRequestError

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_SEED = 2**64 - 1
MAX_TOKENS = 2**31 - 1
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS_TOKENS = 1024
MAX_ALLOWED_TOKEN_IDS = 65536


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping parameters of one request. Names and meanings are vLLM's.

    Attributes:
        temperature: 0 selects greedy decoding.
        top_p: keep the smallest set of tokens whose probabilities reach this sum, in (0, 1].
        top_k: keep the k most probable tokens; None keeps all.
        min_p: drop tokens less probable than min_p times the most probable one, in [0, 1].
        seed: of the counter-based generator; None draws one at admission, which is reported.
        presence_penalty: subtracted from the logit of every token that the output holds.
        frequency_penalty: subtracted from a token's logit once for each time the output holds it.
        repetition_penalty: divides positive and multiplies negative logits of the tokens that
            prompt or output hold (Keskar et al. 2019, CTRL, section 4.1); 1 is off.
        logit_bias: added to the logits of these token ids.
        allowed_token_ids: the only ones that may be sampled; empty allows all.
        max_tokens: largest number of tokens to generate; None goes up to the model's length.
        min_tokens: tokens to generate before an end-of-text or stop token id can be sampled or a
            stop string is looked for.
        logprobs: report the log-probability of each output token, and of this many of the most
            probable ones, in the model's own distribution; None reports none.
        stop: strings that end the text; not part of it unless include_stop_str_in_output.
        stop_token_ids: token ids that end the sequence, besides the model's end-of-text ids.
        ignore_eos: continue past the model's end-of-text ids.
        include_stop_str_in_output: leave the stop string in the text.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        InvalidRequestError: a value is out of bounds; names field, limit and value.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0.0, 100.0)
        _check_real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_real("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, 1, MAX_TOKENS)
        _check_int("seed", self.seed, 0, MAX_SEED)
        _check_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_real("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_count("logit_bias", self.logit_bias, MAX_LOGIT_BIAS_TOKENS)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, MAX_TOKENS)
            _check_real("logit_bias", bias, -100.0, 100.0)
        _check_count("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        for token_id in self.allowed_token_ids:
            _check_int("allowed_token_ids", token_id, 0, MAX_TOKENS)
        _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens or MAX_TOKENS)
        _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                "stop", f"at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidRequestError(
                    "stop", f"each 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}"
                )
        _check_count("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_TOKENS)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken every time."""
        return self.temperature == 0.0


def _check_real(field: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequestError(field, f"must be in {bracket}{low:g}, {high:g}], got {value}")


def _check_count(field: str, values: Sized, most: int) -> None:
    if len(values) > most:
        raise InvalidRequestError(field, f"at most {most} ids, got {len(values)}")


def _check_int(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequestError(field, f"must be in [{low}, {high}], got {value}")
