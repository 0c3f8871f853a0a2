"""The forms that a prompt may have in the offline API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.contract.errors import InvalidRequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or a mapping of "prompt" or "prompt_token_ids", and maybe "cache_salt"."""

_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A prompt, whichever way it was given.

    Attributes:
        content: text or token ids.
        cache_salt: share cached prefixes with prompts of the same salt only.
        shown: text that outputs show beside token ids; None for none.
    """

    content: str | Sequence[int]
    cache_salt: str = ""
    shown: str | None = None


def parse_prompts(prompts: Prompt | Sequence[Prompt]) -> list[ParsedPrompt]:
    """Return the prompts, one or many.

    Raises:
        InvalidRequestError: one has none of the forms.
    """
    if isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [_parse(prompts)]  # type: ignore[arg-type]
    return [_parse(prompt) for prompt in prompts]  # type: ignore[arg-type]


def _parse(prompt: Prompt) -> ParsedPrompt:
    if not isinstance(prompt, Mapping):
        return ParsedPrompt(prompt)
    # None asks for nothing, as in vLLM, under whichever key.
    prompt = {key: value for key, value in prompt.items() if value is not None}
    contents = [prompt[key] for key in ("prompt_token_ids", "prompt") if key in prompt]
    if not contents or not prompt.keys() <= _KEYS:
        raise InvalidRequestError(
            "prompts",
            "a mapping needs prompt or prompt_token_ids, and may have cache_salt, got "
            + ", ".join(map(str, prompt)),
        )
    shown = prompt.get("prompt") if len(contents) > 1 else None
    return ParsedPrompt(contents[0], prompt.get("cache_salt", ""), shown)


def with_ids(prompt: Prompt | None, token_ids: Sequence[int] | None) -> Prompt:
    """Return a prompt whose token ids are given beside it, or in its place.

    Raises:
        InvalidRequestError: neither is given, or it is no text.
    """
    if token_ids is None:
        if prompt is None:
            raise InvalidRequestError("prompts", "must be given, or prompt_token_ids, got neither")
        return prompt
    if prompt is None:
        return token_ids
    if not isinstance(prompt, str):
        raise InvalidRequestError("prompts", "must be texts where prompt_token_ids are given, too")
    return {"prompt": prompt, "prompt_token_ids": token_ids}


def all_with_ids(
    prompts: Prompt | Sequence[Prompt] | None,
    token_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> Prompt | Sequence[Prompt]:
    """Return prompts, one or many, with token ids as of `with_ids`.

    Raises:
        InvalidRequestError: neither is given, or not one for each.
    """
    if prompts is None or token_ids is None:
        return with_ids(prompts, token_ids)  # type: ignore[arg-type]
    texts: Any = [prompts] if isinstance(prompts, str | Mapping) else prompts
    ids: Any = [token_ids] if len(token_ids) and isinstance(token_ids[0], int) else token_ids
    if len(texts) != len(ids):
        raise InvalidRequestError(
            "prompt_token_ids", f"must be one for each of {len(texts)} prompts, got {len(ids)}"
        )
    return [with_ids(text, each) for text, each in zip(texts, ids, strict=True)]
