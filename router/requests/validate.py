"""From what a client sent to what may be submitted: only a ValidGenerateRequest gets any further.

Cheap checks come first, so that a request that is refused has cost next to nothing: sizes, then the
model, then the tokenizer, then token counts.
"""

import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from quire.contract.errors import (
    ContextLengthError,
    InvalidRequestError,
    TextDiffersError,
    TooLargeError,
)
from quire.contract.inputs import (
    DetokenizeInput,
    GenerateInput,
    ReplayInput,
    ResumeInput,
    TokenizeInput,
)
from quire.contract.outputs import ModelInfo
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import ALL_THAT_FIT, SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.observe.tracing import child
from router.chat.structural_tags import STRUCTURAL_TAG, structural_tag_grammar
from router.requests.time_ledger import Part, TimeLedger
from router.text.tokenize import TextCodec

MAX_REQUEST_ID_CHARS = 128
MAX_CACHE_SALT_CHARS = 256
# A beam search hands over all it has found at once: token ids and log-probabilities, which must fit
# a message.
MAX_BEAM_ENTRIES = 2**22
# Looking a model up takes less unless there is no cell that has it.
WAIT_US = 1000


@dataclass(frozen=True, slots=True)
class ValidGenerateRequest:
    """A request that the served model can run.

    Attributes:
        request_id: not empty.
        model: the model it runs on.
        prompt_token_ids: 1 to max_model_len - 1 ids, each in the vocabulary; one more for a vector.
        sampling_params: with max_tokens set, so that prompt and output fit the model's length.
        priority: smaller goes first.
        cache_salt: cached prefixes are shared within a salt only.
        include_time_breakdown: say in the end where the time went.
        include_prompt_token_ids: report the prompt's token ids at the start.
        resumable: run on for a grace time where its stream breaks.
        pooling_params: where a vector is wanted; None where a text is.
        has_max_tokens: whether its client gave max_tokens.
        sampling_defaults: what was filled in of the sampling parameters, by name.
    """

    request_id: str
    model: ModelInfo
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    include_time_breakdown: bool = False
    include_prompt_token_ids: bool = False
    resumable: bool = False
    pooling_params: PoolingParams | None = None
    has_max_tokens: bool = field(default=True, compare=False)
    sampling_defaults: Mapping[str, float] = field(default_factory=dict, compare=False)

    def explain(self, error: TooLargeError) -> TooLargeError:
        """Return the error, with what to do about a max_tokens that nobody gave."""
        if error.field != "max_tokens" or self.has_max_tokens:
            return error
        what = "must be given, since without it an output may be as long as max_model_len allows"
        return TooLargeError(error.field, f"{what}: {error.description}")


class Validator:
    """Checks requests against the limits of this router and of the model they name."""

    def __init__(
        self,
        codec: TextCodec,
        find_model: Callable[[str, str | None, bool], Awaitable[ModelInfo]],
        max_prompt_bytes: int,
        check_grammar: Callable[[StructuredOutputsParams, ModelInfo], Awaitable[None]]
        | None = None,
        defaults: Mapping[str, float] | None = None,
    ):
        """Keep what the checks need.

        Args:
            codec: the tokenizer.
            find_model: the served model of a name, "" for the only one, and of a numerics id, None
                for any, if possible of a cell that gives vectors, where that is wanted; raises
                ModelNotFoundError, NumericsDifferError or UnavailableError.
            max_prompt_bytes: longest text, in bytes of UTF-8.
            check_grammar: raises InvalidRequestError where a model cannot obey a grammar; None
                where none can.
            defaults: of sampling parameters that requests leave open, by name.
        """
        self._defaults = defaults or {}
        self._codec = codec
        self._find_model = find_model
        self._max_prompt_bytes = max_prompt_bytes
        self._check_grammar = check_grammar

    async def check_grammar(self, grammar: StructuredOutputsParams, model: str) -> None:
        """Check that a served model can obey a grammar; raises as `generate`."""
        if self._check_grammar is not None:
            await self._check_grammar(grammar, await self._find_model(model, None, False))

    async def resume(self, resumed: ResumeInput, ledger: TimeLedger) -> ValidGenerateRequest:
        """Check a Resume request, all but what was received, as `generate` does.

        Raises:
            TextDiffersError: its tokenizer was another.
        """
        request, seed = resumed.request, resumed.seed
        if not request.request_id:
            raise InvalidRequestError("request_id", "must be that of started, got none")
        if seed is None:
            raise InvalidRequestError("seed", "must be that of started, got none")
        if request.sampling_params.seed not in (None, seed):
            raise InvalidRequestError(
                "seed", f"must be the request's ({request.sampling_params.seed}), got {seed}"
            )
        params = dataclasses.replace(request.sampling_params, seed=seed)
        request = dataclasses.replace(request, sampling_params=params)
        # Who resumes sends what was filled in within the request; clients of earlier releases do
        # not, and get what this router fills in.
        defaults = resumed.sampling_defaults if isinstance(resumed, ReplayInput) else None
        has_begun = not isinstance(resumed, ReplayInput)
        valid = await self.generate(request, ledger, resumed.numerics_id, has_begun, defaults)
        if valid.model.text_id != resumed.text_id:
            raise TextDiffersError(
                f"text_id: must be {valid.model.text_id}, got {resumed.text_id or 'none'}"
            )
        return valid

    async def generate(
        self,
        request: GenerateInput,
        ledger: TimeLedger,
        numerics_id: str | None = None,
        has_begun: bool = False,
        defaults: Mapping[str, float] | None = None,
    ) -> ValidGenerateRequest:
        """Check and tokenize a Generate request.

        Args:
            request: as it came.
            ledger: of its time; books what this waits for.
            numerics_id: that the model must have, where the request is resumed; else None.
            has_begun: whether max_tokens is that with which it began elsewhere.
            defaults: of sampling parameters that it leaves open; None for this router's own.

        Raises:
            InvalidRequestError: a field is out of bounds; names field, limit and value.
            ModelNotFoundError: the model is not served here.
            NumericsDifferError: it is, and not with this numerics id.
            OverloadedError: too many texts wait for the tokenizer.
            UnavailableError: no scheduler is reachable.
        """
        check_lengths(request.request_id, request.cache_salt)
        if not request.prompt:
            raise InvalidRequestError("prompt", "at least 1 token, got 0")
        if isinstance(request.prompt, str):
            self._check_bytes("prompt", request.prompt)
        with ledger.during(Part.NOT_READY, WAIT_US):
            with_vectors = request.pooling_params is not None
            model = await self._find_model(request.model, numerics_id, with_vectors)
        if not with_vectors:
            model.check_generates()
        params = request.sampling_params
        defaults = self._defaults if defaults is None else defaults
        filled = {name: defaults[name] for name in defaults if name in params.left_open}
        params = params.filled(filled)
        check_ids("stop_token_ids", params.stop_token_ids, model)
        check_ids("allowed_token_ids", params.allowed_token_ids, model)
        check_ids("logit_bias", tuple(params.logit_bias), model)
        for word_ids in params.bad_words_token_ids:
            check_ids("bad_words_token_ids", word_ids, model)
        token_ids: Sequence[int]
        if isinstance(request.prompt, str):
            with ledger.during(Part.TOKENIZE), child("tokenize"):
                token_ids = await self._codec.encode(request.prompt)
            if not token_ids:
                raise InvalidRequestError("prompt", "at least 1 token, got 0")
        else:
            token_ids = request.prompt
        token_ids = _truncated(token_ids, params, model)
        room = model.max_model_len - len(token_ids)
        capped = params.max_tokens or room
        if request.pooling_params is not None:
            _check_vector(token_ids, model, request.pooling_params)
        # What is resumed with the max_tokens that it began with goes to cells where that fits.
        elif not has_begun or params.max_tokens is None:
            _check_prompt_length(token_ids, model)
            capped = min(capped, room)
        # Checked for text too: a tokenizer may know tokens that the model has no row for.
        check_ids("prompt", token_ids, model)
        if params.min_tokens > capped:
            raise InvalidRequestError(
                "min_tokens",
                f"must be at most {capped}, the tokens that fit after the prompt, "
                f"got {params.min_tokens}",
            )
        has_max_tokens = params.max_tokens is not None
        params = dataclasses.replace(params, max_tokens=capped)
        if params.use_beam_search:
            _check_beam_entries(params, capped)
        if (grammar := params.structured_outputs) is not None:
            if self._check_grammar is None:
                raise InvalidRequestError("structured_outputs", "must be absent: none is obeyed")
            tag = grammar.structural_tag
            try:
                if tag is not None:
                    made = structural_tag_grammar(str(tag), self._codec.added_tokens)
                    grammar = StructuredOutputsParams(grammar=made)
                    params = dataclasses.replace(params, structured_outputs=grammar)
                await self._check_grammar(grammar, model)
            except InvalidRequestError as error:
                if tag is None or error.field.startswith(STRUCTURAL_TAG):
                    raise
                raise error.renamed(STRUCTURAL_TAG) from None  # the grammar was made of it
        return ValidGenerateRequest(
            request.request_id or uuid.uuid4().hex,
            model,
            tuple(token_ids),
            await self._with_bad_words(params, model),
            request.priority,
            request.cache_salt,
            request.include_time_breakdown,
            request.include_prompt_token_ids,
            request.resumable,
            request.pooling_params,
            has_max_tokens,
            filled,
        )

    async def _with_bad_words(self, params: SamplingParams, model: ModelInfo) -> SamplingParams:
        """Add the tokens of what the output must not hold, at the start of a word and inside."""
        if not params.bad_words:
            return params
        found = dict.fromkeys(params.bad_words_token_ids)
        for word in params.bad_words:
            for text in (word, f" {word.lstrip()}"):
                token_ids = tuple(await self._codec.encode(text, False))
                # The model cannot sample a token that it has no row for.
                if token_ids and max(token_ids) < model.vocab_size:
                    found[token_ids] = None
        try:
            return dataclasses.replace(params, bad_words_token_ids=tuple(found))
        except InvalidRequestError as error:
            raise InvalidRequestError("bad_words", f"as tokens: {error.description}") from error

    async def tokenize(
        self, request: TokenizeInput, turn: AbstractAsyncContextManager[object] | None = None
    ) -> Sequence[int]:
        """Check a Tokenize request and return its token ids.

        Args:
            request: as it came.
            turn: to hold while the text is with the tokenizer.

        Raises:
            QuireError: as `generate`.
        """
        self._check_bytes("text", request.text)
        await self._find_model(request.model, None, False)
        async with turn or nullcontext():
            return await self._codec.encode(request.text, request.add_special_tokens)

    async def detokenize(self, request: DetokenizeInput) -> str:
        """Check a Detokenize request and return its text; raises as `generate`."""
        info, token_ids = await self._find_model(request.model, None, False), request.token_ids
        if len(token_ids) > info.max_model_len:
            raise InvalidRequestError(
                "token_ids", f"at most {info.max_model_len} tokens, got {len(token_ids)}"
            )
        check_ids("token_ids", token_ids, info)
        return await self._codec.decode(token_ids, request.skip_special_tokens)

    def check_repeated(self, field: str, text: str, times: int) -> None:
        """Check a text that becomes part of many prompts, before it does.

        Raises:
            InvalidRequestError: it is longer in all than one prompt may be.
        """
        size, limit = len(text) * times, self._max_prompt_bytes
        if size > limit:
            problem = f"at most {limit} characters in all of {times} prompts, got {size}"
            raise InvalidRequestError(field, problem)

    def _check_bytes(self, field: str, text: str) -> None:
        # A character is at least one byte: counting characters first spares encoding a text that is
        # far too long.
        size = len(text)
        if size <= self._max_prompt_bytes:
            size = len(text.encode())
        if size > self._max_prompt_bytes:
            raise InvalidRequestError(field, f"at most {self._max_prompt_bytes} bytes, got {size}")


def _truncated(token_ids: Sequence[int], params: SamplingParams, model: ModelInfo) -> Sequence[int]:
    """Return the tokens of a prompt that its parameters leave of it."""
    num_kept = params.truncate_prompt_tokens
    if num_kept is None:
        return token_ids
    if num_kept == ALL_THAT_FIT:
        # Where max_tokens would leave no room for a prompt, it is less that will be answered.
        room = model.max_model_len - (params.max_tokens or 1)
        num_kept = room if room > 0 else model.max_model_len - 1
    return token_ids[:num_kept] if params.truncate_right else token_ids[-num_kept:]


def _check_prompt_length(token_ids: Sequence[int], model: ModelInfo) -> None:
    _check_length(token_ids, model.max_model_len - 1, model)


def _check_length(token_ids: Sequence[int], limit: int, model: ModelInfo) -> None:
    if (size := len(token_ids)) > limit:
        raise ContextLengthError(
            "prompt",
            f"must be at most {limit} tokens, got {size}: "
            f"this model's maximum context length is {model.max_model_len} tokens",
            size,
            limit,
        )


def _check_vector(token_ids: Sequence[int], model: ModelInfo, params: PoolingParams) -> None:
    if not model.embedding_size:
        raise InvalidRequestError(
            "model", f"must be one that gives vectors, got {model.name}, of an earlier release"
        )
    _check_length(token_ids, model.max_model_len, model)
    if params.dimensions is None:
        return
    if not model.is_matryoshka:
        raise InvalidRequestError(
            "dimensions", "must be absent: config.json of the model has no is_matryoshka"
        )
    sizes = model.matryoshka_dimensions or range(1, model.embedding_size + 1)
    if params.dimensions not in sizes:
        shown = ", ".join(map(str, model.matryoshka_dimensions)) or f"1 to {model.embedding_size}"
        raise InvalidRequestError("dimensions", f"must be one of {shown}, got {params.dimensions}")


def _check_beam_entries(params: SamplingParams, max_tokens: int) -> None:
    each = 1 if params.logprobs is None else 2 + params.logprobs
    entries = params.n * max_tokens * each
    if entries > MAX_BEAM_ENTRIES:
        raise InvalidRequestError(
            "max_tokens",
            f"n beams of max_tokens token ids, each with its logprobs, must be at most "
            f"{MAX_BEAM_ENTRIES} numbers together, got {entries}",
        )


def check_lengths(request_id: str, cache_salt: str) -> None:
    """Check how long the id and the salt of a request are.

    Raises:
        InvalidRequestError: one is too long.
    """
    for name, text, limit in (
        ("request_id", request_id, MAX_REQUEST_ID_CHARS),
        ("cache_salt", cache_salt, MAX_CACHE_SALT_CHARS),
    ):
        if len(text) > limit:
            raise InvalidRequestError(name, f"at most {limit} characters, got {len(text)}")


def check_ids(field: str, token_ids: Sequence[int], model: ModelInfo) -> None:
    """Check that a model has these tokens.

    Raises:
        InvalidRequestError: it has not.
    """
    largest = max(token_ids, default=0)
    smallest = min(token_ids, default=0)
    for value in (largest, smallest):
        if not 0 <= value < model.vocab_size:
            raise InvalidRequestError(
                field, f"token ids must be in [0, {model.vocab_size}), got {value}"
            )
