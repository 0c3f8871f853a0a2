"""From the body of /v1/completions to requests, one for each prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from quire.contract.inputs import GenerateInput
from quire.contract.sampling_params import MAX_TOKENS
from router.http.bodies import kind_of
from router.http.fields import Fields
from router.http.sampling import check_served, read_sampling_params

# OpenAI's, and vLLM's.
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
# Outputs of all prompts.
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What one body asks for.

    Attributes:
        inputs: a request for each prompt.
        suffix: what stands behind the output; "" where nothing does.
        n: outputs of each.
        add_special_tokens: whether a prompt's text gets what the model expects around it.
        echo: show the prompt before its output.
        no_output: show the prompt alone; a token that is computed all the same is left out.
        logprobs: how many of the most probable tokens to show beside each; None for none.
        prompt_logprobs: likewise of the prompt, in vLLM's field.
        is_stream: answer with events.
        include_usage: end a stream with the numbers of tokens.
        continuous_usage: show these numbers in each event.
        return_token_ids: show token ids beside text.
        tokens_as_ids: show tokens by their ids where their log-probabilities are.
        return_prompt_token_ids: and those of the prompt, also where it is not shown.
    """

    inputs: tuple[GenerateInput, ...]
    suffix: str
    n: int
    add_special_tokens: bool
    echo: bool
    no_output: bool
    logprobs: int | None
    prompt_logprobs: int | None
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    return_prompt_token_ids: bool

    def with_id(self, request_id: str) -> "CompletionRequest":
        """Return it with an id for each prompt: this one, then with numbers behind it."""
        ids = (f"{request_id}-{place}" if place else request_id for place in count())
        inputs = (
            replace(each, request_id=own) for each, own in zip(self.inputs, ids, strict=False)
        )
        return replace(self, inputs=tuple(inputs))


def read_request(body: Fields) -> CompletionRequest:
    """Return what a body asks for; its requests have no ids yet.

    Raises:
        InvalidRequestError: a field is of another type, out of bounds, or not served here.
    """
    check_served(body)
    prompts, suffix = _prompts(body), body.text("suffix")
    echo, is_stream = body.boolean("echo"), body.boolean("stream")
    if suffix:
        _check_infill(body, prompts, echo)
    logprobs, prompt_logprobs = body.integer("logprobs"), body.integer("prompt_logprobs")
    max_tokens = body.integer("max_tokens", DEFAULT_MAX_TOKENS)
    no_output = max_tokens == 0 and (echo or prompt_logprobs is not None)
    if echo and prompt_logprobs is None:
        body.own_names["prompt_logprobs"] = "logprobs"
    params = read_sampling_params(
        body,
        max_tokens=1 if no_output else max_tokens,
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo and prompt_logprobs is None else prompt_logprobs,
    )
    if len(prompts) * params.n > MAX_CHOICES:
        raise body.refuse(
            "n", f"must be at most {MAX_CHOICES} with all prompts, got {len(prompts) * params.n}"
        )
    options = body.fields("stream_options")
    if options.names() and not is_stream:
        raise body.refuse("stream_options", "must be absent unless stream is true")
    inputs = tuple(
        GenerateInput(
            prompt,
            params,
            model=body.text("model"),
            priority=body.integer("priority", 0) or 0,
            cache_salt=body.text("cache_salt"),
            include_prompt_token_ids=True,
            resumable=body.boolean("resumable"),
        )
        for prompt in prompts
    )
    return CompletionRequest(
        inputs=inputs,
        suffix=suffix,
        n=params.n,
        add_special_tokens=body.boolean("add_special_tokens", True),
        echo=echo,
        no_output=no_output,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        is_stream=is_stream,
        include_usage=options.boolean("include_usage"),
        continuous_usage=options.boolean("continuous_usage_stats"),
        return_token_ids=body.boolean("return_token_ids", is_stream),
        tokens_as_ids=body.boolean("return_tokens_as_token_ids"),
        return_prompt_token_ids=body.boolean("return_token_ids"),
    )


def _check_infill(body: Fields, prompts: Sequence[str | Sequence[int]], echo: bool) -> None:
    if not isinstance(prompts[0], str):
        raise body.refuse("prompt", "must be a string where suffix is given, got token ids")
    if echo:
        raise body.refuse("echo", "must be false where suffix is given")
    if "truncate_prompt_tokens" in body:
        raise body.refuse("truncate_prompt_tokens", "must be absent where suffix is given")


def _prompts(body: Fields) -> Sequence[str | Sequence[int]]:
    """Return the prompts: a string, token ids, or an array of either."""
    value = body.value("prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        got = "none" if value is None or value == [] else kind_of(value)
        raise body.refuse("prompt", f"must be a string, token ids, or an array of them, got {got}")
    if not isinstance(value[0], str | list):
        return [_token_ids(body, value)]
    if len(value) > MAX_PROMPTS:
        raise body.refuse("prompt", f"must be at most {MAX_PROMPTS} prompts, got {len(value)}")
    kind = type(value[0])
    if not all(isinstance(each, kind) for each in value):
        raise body.refuse("prompt", "must be all strings or all token ids, got both")
    return value if kind is str else [_token_ids(body, each) for each in value]


def _token_ids(body: Fields, values: list[Any]) -> Sequence[int]:
    for value in values:
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            got = value if type(value) is int else kind_of(value)
            raise body.refuse("prompt", f"must hold token ids in [0, {MAX_TOKENS}], got {got}")
    return values
