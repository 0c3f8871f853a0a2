"""Answers of /v1/completions: parts of choices as events, or as one object."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from router.http.call import to_json
from router.http.completions.choices import Part, PromptChoices, stop_reason
from router.http.completions.request import CompletionRequest
from router.http.errors import failure_of
from router.http.event_stream import DONE, EventStream, event_bytes
from router.http.resume import EventIds, fingerprint
from router.http.usage import token_usage


def _fingerprint(prompts: Sequence[PromptChoices]) -> str | None:
    started = next(each.started for each in prompts if each.started)
    return fingerprint(started)


def usage(prompts: Sequence[PromptChoices]) -> dict[str, Any]:
    """Return the numbers of tokens so far."""
    num_prompt = sum(each.started.num_prompt_tokens for each in prompts if each.started)
    num_tokens = sum(each.num_tokens for each in prompts)
    return token_usage(num_prompt, num_tokens, sum(each.num_cached_tokens for each in prompts))


class StreamedAnswer:
    """Sends each part as an event of its own.

    Args:
        own: id, created and model.
        request: to answer.
        prompts: whose parts come.
        ids: of the events.
        stream: to send to.
    """

    def __init__(
        self,
        own: dict[str, Any],
        request: CompletionRequest,
        prompts: Sequence[PromptChoices],
        ids: EventIds,
        stream: EventStream,
    ) -> None:
        self._own = {**own, "object": "text_completion"}
        self._request = request
        self._prompts = prompts
        self._stream = stream
        self._ids = ids
        self._last_tokens: dict[int, int] = {}
        self._begun: set[int] = set()
        # Of each choice, up to the part that is sent: later ones may have come with it.
        self._num_tokens = Counter[int]()

    async def take(self, choices: PromptChoices, parts: Sequence[Part]) -> None:
        """Send parts of a prompt's choices."""
        await self._stream.write(b"".join(self._event(choices, part) for part in parts))

    def _event(self, choices: PromptChoices, part: Part) -> bytes:
        request, end = self._request, part.end
        assert choices.started is not None, "the first event"
        if part.token_ids:
            self._last_tokens[part.index] = part.token_ids[-1]
            self._num_tokens[part.index] += len(part.token_ids)
        is_first = part.index not in self._begun
        self._begun.add(part.index)
        event_id = self._ids.next(part.index)
        if event_id is None:
            return b""
        choice: dict[str, Any] = {
            "index": part.index,
            "text": part.text,
            "logprobs": part.logprobs,
            "finish_reason": None if end is None else end.finish_reason.shown,
            "stop_reason": None,
            "seed": choices.started.seed,
            **failure_of(end),
        }
        if request.return_token_ids:
            choice["token_ids"] = part.token_ids
        if is_first and request.return_prompt_token_ids:
            choice["prompt_token_ids"] = list(choices.started.prompt_token_ids)
        if part.prompt:
            choice |= part.prompt
        if end is not None:
            stop_ids = request.inputs[0].sampling_params.stop_token_ids
            choice["stop_reason"] = stop_reason(end, self._last_tokens.get(part.index), stop_ids)
        content = {
            **self._own,
            "system_fingerprint": _fingerprint(self._prompts),
            "choices": [choice],
        }
        if request.continuous_usage:
            num_prompt = choices.started.num_prompt_tokens
            num_tokens = self._num_tokens[part.index]
            content["usage"] = token_usage(num_prompt, num_tokens, choices.num_cached_tokens)
        elif request.include_usage:
            content["usage"] = None
        return event_bytes(to_json(content), event_id)

    async def end(self) -> None:
        """Send what follows the last part."""
        last = DONE
        if self._request.include_usage:
            content = {**self._own, "choices": [], "usage": usage(self._prompts)}
            last = event_bytes(to_json(content)) + DONE
        await self._stream.end(last)


class WholeAnswer:
    """Puts all parts together.

    Args:
        own: id, created and model.
        request: to answer.
        prompts: whose parts come.
    """

    def __init__(
        self, own: dict[str, Any], request: CompletionRequest, prompts: Sequence[PromptChoices]
    ) -> None:
        self._own = {**own, "object": "text_completion"}
        self._request = request
        self._prompts = prompts
        self._parts: dict[int, list[Part]] = {}

    async def take(self, choices: PromptChoices, parts: Sequence[Part]) -> None:
        """Keep parts of a prompt's choices."""
        for part in parts:
            self._parts.setdefault(part.index, []).append(part)

    def content(self) -> dict[str, Any]:
        """Return what the answer says."""
        return {
            **self._own,
            "system_fingerprint": _fingerprint(self._prompts),
            "choices": [self._choice(index) for index in sorted(self._parts)],
            "usage": usage(self._prompts),
        }

    def _choice(self, index: int) -> dict[str, Any]:
        request, parts = self._request, self._parts[index]
        started = self._prompts[index // request.n].started
        end = parts[-1].end
        assert started is not None and end is not None, "its request has come to its end"
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        stop_ids = request.inputs[0].sampling_params.stop_token_ids
        choice = {
            "index": index,
            "text": "".join(part.text for part in parts),
            "logprobs": _joined([part.logprobs for part in parts if part.logprobs]),
            "finish_reason": end.finish_reason.shown,
            "stop_reason": stop_reason(end, token_ids[-1] if token_ids else None, stop_ids),
            "seed": started.seed,
            **failure_of(end),
        }
        if request.return_token_ids:
            choice |= {
                "token_ids": token_ids,
                "prompt_token_ids": list(started.prompt_token_ids),
            }
        for part in parts:
            choice |= part.prompt or {}
        return choice


def _joined(logprobs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not logprobs:
        return None
    return {name: [item for each in logprobs for item in each[name]] for name in logprobs[0]}
