"""Sampling parameters of a JSON body: OpenAI's, and those that vLLM adds to them."""

from collections.abc import Mapping
from typing import Any

from quire.contract.sampling_params import (
    FILLED_IN,
    MAX_ITEMS,
    MAX_LOGIT_BIAS_TOKENS,
    SamplingParams,
)
from router.http.fields import Fields
from router.http.structured_outputs import read_structured_outputs

# Fields that would change an answer, and are not obeyed here: refused by name.
NOT_SERVED = {
    "prompt_embeds": "prompts are text or token ids",
    "logits_processors": "no code of a request is run here",
    "lora_request": "no adapters are served here",
}


def check_served(body: Fields) -> None:
    """Refuse what would change an answer and is not obeyed here.

    Raises:
        InvalidRequestError: the body asks for that; names the field.
    """
    for name, why in NOT_SERVED.items():
        if name in body:
            raise body.refuse(name, f"must be absent: {why}")


def read_sampling_params(
    body: Fields, response_format: str = "response_format", **own: Any
) -> SamplingParams:
    """Return the sampling parameters of a body.

    Args:
        body: of the request.
        response_format: the field in which the API says what a text must be, fields within others
            joined by dots.
        own: parameters that an API spells in a way of its own: `max_tokens`, `logprobs`,
            `prompt_logprobs`.

    Raises:
        InvalidRequestError: one is of another type, or out of bounds.
    """
    is_search = body.boolean("use_beam_search")
    return SamplingParams(
        n=body.integer("n", 1) or 0,
        best_of=body.integer("best_of"),
        use_beam_search=is_search,
        length_penalty=body.number("length_penalty", 1.0),
        early_stopping=_early_stopping(body),
        temperature=body.number("temperature", 0.0 if is_search else 1.0),
        top_p=body.number("top_p", 1.0),
        top_k=_top_k(body),
        min_p=body.number("min_p", 0.0),
        seed=body.integer("seed"),
        presence_penalty=body.number("presence_penalty", 0.0),
        frequency_penalty=body.number("frequency_penalty", 0.0),
        repetition_penalty=body.number("repetition_penalty", 1.0),
        logit_bias=_logit_bias(body),
        allowed_token_ids=body.integers("allowed_token_ids", MAX_ITEMS["allowed_token_ids"]),
        bad_words=body.texts("bad_words", MAX_ITEMS["bad_words"]),
        min_tokens=body.integer("min_tokens", 0) or 0,
        stop=tuple(text for text in body.texts("stop", MAX_ITEMS["stop"]) if text),
        stop_token_ids=body.integers("stop_token_ids", MAX_ITEMS["stop_token_ids"]),
        ignore_eos=body.boolean("ignore_eos"),
        include_stop_str_in_output=body.boolean("include_stop_str_in_output"),
        skip_special_tokens=body.boolean("skip_special_tokens", True),
        spaces_between_special_tokens=body.boolean("spaces_between_special_tokens", True),
        truncate_prompt_tokens=body.integer("truncate_prompt_tokens"),
        truncate_right=truncates_right(body),
        structured_outputs=read_structured_outputs(body, response_format),
        left_open=_left_open(body, own, is_search),
        **own,
    )


def truncates_right(body: Fields) -> bool:
    """Return whether a prompt that is cut keeps its first tokens; vLLM's `truncation_side`."""
    side = body.text("truncation_side", "left")
    if side not in ("left", "right"):
        raise body.refuse("truncation_side", f"must be left or right, got {side[:32]!r}")
    return side == "right"


def _left_open(body: Fields, own: Mapping[str, Any], is_search: bool) -> frozenset[str]:
    """Return what a model's generation_config.json may fill in."""
    given = {name for name in FILLED_IN if own.get(name) is not None or name in body}
    return frozenset(FILLED_IN) - given - ({"temperature"} if is_search else set())


def _top_k(body: Fields) -> int | None:
    """Return top_k; vLLM's 0 and -1 keep all."""
    top_k = body.integer("top_k")
    return None if top_k in (0, -1) else top_k


def _early_stopping(body: Fields) -> bool | str:
    value = body.value("early_stopping")
    return body.text("early_stopping") if isinstance(value, str) else body.boolean("early_stopping")


def _logit_bias(body: Fields) -> dict[int, float]:
    """Return the bias of each token; JSON has ids as strings there."""
    found: dict[int, float] = {}
    biases = body.fields("logit_bias")
    names = biases.names()
    if len(names) > MAX_LOGIT_BIAS_TOKENS:
        raise body.refuse(
            "logit_bias", f"must have at most {MAX_LOGIT_BIAS_TOKENS} items, got {len(names)}"
        )
    for name in names:
        if not (name.isascii() and name.isdigit() and len(name) < 16):
            raise body.refuse("logit_bias", f"must have token ids as names, got {name[:32]!r}")
        found[int(name)] = biases.number(name, 0.0)
    return found
