"""How a request's tokens are chosen and when they end."""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams

# vLLM's: a smaller one would draw among logits that tie, and nothing else.
GREEDY_BELOW = 1e-5
MAX_STOP_STRINGS = 16
MAX_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_SEED = 2**64 - 1
MAX_TOKENS = 2**31 - 1
ALL_THAT_FIT = -1
DEFAULT_MAX_TOKENS = 16  # vLLM's, and OpenAI's for completions
MAX_LOGPROBS = 20
MAX_WIDTH = 64
MAX_BAD_WORDS = 256
MAX_LOGIT_BIAS_TOKENS = 1024
MAX_ALLOWED_TOKEN_IDS = 65536
# What a model's generation_config.json may have defaults of.
COUNTS = ("top_k", "max_tokens")
FILLED_IN = ("temperature", "top_p", "min_p", "repetition_penalty", *COUNTS)
# Of each field that holds several, how many it may hold.
MAX_ITEMS = {
    "logit_bias": MAX_LOGIT_BIAS_TOKENS,
    "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS,
    "stop": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "bad_words": MAX_BAD_WORDS,
    "bad_words_token_ids": 2 * MAX_BAD_WORDS,
}


@dataclass(slots=True)
class SamplingParams:
    """Sampling and stopping parameters of one request. Names and meanings are vLLM's.

    Fields that hold several values take any sequence of them, or None for none, and keep a tuple;
    `stop` takes a single string, too. A field may be set later: its value is checked as here, and
    requests that have the parameters already keep what they had.

    Attributes:
        n: outputs to return.
        best_of: outputs to sample, of which the n most probable ones are returned; the number of
            beams of a beam search. None for n.
        use_beam_search: search for the most probable outputs instead of sampling; needs a
            temperature of 0.
        length_penalty: a beam's score is the sum of its log-probabilities over its length to the
            power of this.
        early_stopping: when a beam search ends, with `best_of` texts found: True, at once; False,
            when no beam of the present length scores better; "never", when none could at its
            longest.
        temperature: below 1e-5 it is 0, which selects greedy decoding.
        top_p: keep the smallest set of tokens whose probabilities reach this sum, in (0, 1].
        top_k: keep the k most probable tokens; None keeps all, as 0 and -1 do.
        min_p: drop tokens less probable than min_p times the most probable one, in [0, 1].
        seed: of the counter-based generator; None, or -1, has the scheduler draw and report one.
        presence_penalty: subtracted from the logit of every token that the output holds.
        frequency_penalty: subtracted from a token's logit once for each time the output holds it.
        repetition_penalty: divides positive and multiplies negative logits of the tokens that
            prompt or output hold (Keskar et al. 2019, CTRL, section 4.1); 1 is off.
        logit_bias: added to the logits of these token ids.
        allowed_token_ids: the only ones that may be sampled; empty allows all.
        bad_words: texts that must not come about from the tokens that spell them; other tokens
            may still have one inside.
        bad_words_token_ids: the same as token ids; the router adds those of `bad_words`.
        max_tokens: largest number of tokens to generate; what max_model_len leaves after the prompt
            if that is less, or if None. Started reports it. On the wire its absence means None.
        min_tokens: tokens to generate before an end-of-text or stop token id can be sampled or a
            stop string is looked for.
        logprobs: report the log-probability of each output token, and of this many of the most
            probable ones, in the model's own distribution; None reports none.
        prompt_logprobs: the same for each token of the prompt but the first.
        stop: strings that end the text; not part of it unless include_stop_str_in_output.
        stop_token_ids: token ids that end the sequence, besides the model's end-of-text ids. The
            text is without theirs unless include_stop_str_in_output.
        ignore_eos: continue past the model's end-of-text ids.
        include_stop_str_in_output: leave in the text what ended it, the stop string or the text of
            the stop token or end-of-text id.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: put spaces around special tokens that are not left out.
        truncate_prompt_tokens: use only so many tokens of the prompt, its last ones; -1 for as many
            as leave room for the output; None uses all.
        truncate_right: use the first ones instead.
        structured_outputs: the grammar of the output. Where it allows nothing more an end-of-text
            id is sampled, also before min_tokens. None allows any text.
        left_open: names of those of FILLED_IN that a router fills in from the model's
            generation_config.json; what they hold here stands where that has nothing.

    Raises:
        InvalidRequestError: a value is out of bounds; names field, limit and value.
    """

    # The first twelve in vLLM 0.1.2's order, for who gives them by position.
    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    use_beam_search: bool = False
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    logprobs: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncate_right: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    left_open: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        self._take_other_spellings()
        check_counts(self)
        _check_int("n", self.n, 1, MAX_WIDTH)
        _check_int("best_of", self.best_of, self.n, MAX_WIDTH)
        _check_real("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequestError(
                "early_stopping", f"must be True, False or 'never', got {self.early_stopping!r}"
            )
        if self.use_beam_search:
            self._check_beam_search()
        if self.structured_outputs is not None:
            self._check_structured_outputs()
        _check_real("temperature", self.temperature, 0.0, 100.0)
        _check_real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_real("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, 1, MAX_TOKENS)
        _check_int("seed", self.seed, 0, MAX_SEED)
        _check_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_real("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        for token_id, bias in self.logit_bias.items():
            _check_int("logit_bias", token_id, 0, MAX_TOKENS)
            _check_real("logit_bias", bias, -100.0, 100.0)
        for token_id in self.allowed_token_ids:
            _check_int("allowed_token_ids", token_id, 0, MAX_TOKENS)
        _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens or MAX_TOKENS)
        _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.truncate_prompt_tokens != ALL_THAT_FIT:
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_TOKENS)
        _check_texts("stop", self.stop)
        _check_texts("bad_words", self.bad_words)
        for token_ids in self.bad_words_token_ids:
            if not 1 <= len(token_ids) <= MAX_STRING_CHARS:
                raise InvalidRequestError(
                    "bad_words_token_ids",
                    f"each 1 to {MAX_STRING_CHARS} token ids, got {len(token_ids)}",
                )
            for token_id in token_ids:
                _check_int("bad_words_token_ids", token_id, 0, MAX_TOKENS)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_TOKENS)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, which is then no longer left open; a value that is refused changes nothing.

        Raises:
            AttributeError: there is no such field.
            InvalidRequestError: the value is out of bounds, alone or beside the others.
        """
        # The last field is there once all are: before, parameters are made, copied or unpickled.
        if not hasattr(self, "left_open"):
            object.__setattr__(self, name, value)
            return
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"SamplingParams has no {name}")
        changes: Any = {"left_open": self.left_open - {name}, name: value}
        changed = replace(self, **changes)
        for each in self.__dataclass_fields__:
            object.__setattr__(self, each, getattr(changed, each))

    @property
    def width(self) -> int:
        """Sequences that run for the request."""
        return self.n if self.best_of is None else self.best_of

    def filled(self, defaults: Mapping[str, float]) -> "SamplingParams":
        """Return parameters that leave nothing open.

        Args:
            defaults: of some of FILLED_IN, by name, which take the place of what is here.

        Raises:
            InvalidRequestError: one is out of bounds.
        """
        changes: Any = dict(defaults)
        return replace(self, left_open=frozenset(), **changes)

    def clone(self) -> "SamplingParams":
        """Return a copy, which what is set here later does not change.

        Its values were checked when they were set: of long ones a check takes milliseconds.
        """
        copied = copy(self)
        object.__setattr__(copied, "logit_bias", dict(self.logit_bias))
        return copied

    def with_seed(self, seed: int) -> "SamplingParams":
        """Return a copy that has a seed in [0, MAX_SEED]; see `clone`."""
        copied = self.clone()
        object.__setattr__(copied, "seed", seed)
        return copied

    def _take_other_spellings(self) -> None:
        """Keep one form of what callers may write in several, as vLLM's may."""
        changed: dict[str, object] = {}
        if isinstance(self.stop, str):
            changed["stop"] = (self.stop,)
        for name in MAX_ITEMS:
            value = changed.get(name, getattr(self, name))
            if value is None:
                changed[name] = {} if name == "logit_bias" else ()
            elif isinstance(value, Mapping):
                changed[name] = dict(value)  # which the caller cannot change
            elif isinstance(value, Iterable) and not isinstance(value, tuple | Mapping | str):
                changed[name] = tuple(value)
        if self.bad_words_token_ids:
            changed["bad_words_token_ids"] = tuple(map(tuple, self.bad_words_token_ids))
        if self.top_k in (0, -1):
            changed["top_k"] = None
        if self.seed == -1:
            changed["seed"] = None
        if 0.0 < self.temperature < GREEDY_BELOW:
            changed["temperature"] = 0.0
        for name, value in changed.items():
            object.__setattr__(self, name, value)

    def _check_beam_search(self) -> None:
        if self.width < 2:
            raise InvalidRequestError(
                "best_of", f"must be at least 2 with use_beam_search, got {self.width}"
            )
        if self.temperature != 0.0:
            raise InvalidRequestError(
                "temperature", f"must be 0 with use_beam_search, got {self.temperature}"
            )
        if self.stop:
            raise InvalidRequestError(
                "stop", "must be empty with use_beam_search; stop_token_ids end its texts"
            )

    def _check_structured_outputs(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise InvalidRequestError(
                "structured_outputs",
                "must be StructuredOutputsParams or None, "
                f"got {type(self.structured_outputs).__name__}",
            )
        if self.use_beam_search:
            raise InvalidRequestError("structured_outputs", "must be absent with use_beam_search")
        if self.ignore_eos:
            # Nothing else ends a text whose grammar is complete.
            raise InvalidRequestError("ignore_eos", "must be false with structured_outputs")


@dataclass(slots=True)
class BeamSearchParams:
    """Parameters of `LLM.beam_search`. Names and meanings are vLLM's.

    Attributes:
        beam_width: beams that are searched, and texts that are returned.
        max_tokens: largest number of tokens to generate.
        ignore_eos: continue past the model's end-of-text ids.
        length_penalty: see SamplingParams.
        early_stopping: see SamplingParams.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def sampling_params(self) -> SamplingParams:
        """Return the parameters of a request that searches.

        Raises:
            InvalidRequestError: a value is out of bounds.
        """
        _check_int("beam_width", self.beam_width, 1, MAX_WIDTH)
        return SamplingParams(
            n=self.beam_width,
            # One beam is greedy decoding.
            use_beam_search=self.beam_width > 1,
            temperature=0.0,
            logprobs=0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


def _check_real(field: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequestError(field, f"must be in {bracket}{low:g}, {high:g}], got {value}")


def check_counts(params: object) -> None:
    """Check how many items the fields of SamplingParams have, or those of its message.

    Raises:
        InvalidRequestError: a field has too many.
    """
    for name, most in MAX_ITEMS.items():
        values: Sized = getattr(params, name)
        if len(values) > most and not isinstance(values, str):
            raise InvalidRequestError(name, f"must have at most {most} items, got {len(values)}")


def _check_texts(field: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str):  # else each of its characters would be one
        raise InvalidRequestError(field, f"must be a tuple of strings, got {texts!r}")
    for text in texts:
        if not 1 <= len(text) <= MAX_STRING_CHARS:
            raise InvalidRequestError(
                field, f"each 1 to {MAX_STRING_CHARS} characters, got {len(text)}"
            )


def _check_int(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequestError(field, f"must be in [{low}, {high}], got {value}")
