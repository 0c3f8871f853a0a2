"""Answers of /v1/chat/completions: parts of choices as events, or as one object."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from router.http.call import to_json
from router.http.chat.choices import ChatChoices, Part, joined_logprobs
from router.http.chat.messages import Messages
from router.http.chat.request import ChatCompletionRequest
from router.http.completions.choices import stop_reason
from router.http.errors import failure_of
from router.http.event_stream import DONE, EventStream, event_bytes
from router.http.logprobs import prompt_logprobs
from router.http.resume import EventIds
from router.http.usage import token_usage


class StreamedChat:
    """Sends each part as an event of its own.

    Args:
        own: id, created and model.
        request: to answer.
        choices: whose parts come.
        messages: what their texts mean.
        ids: of the events.
        stream: to send to.
    """

    def __init__(
        self,
        own: dict[str, Any],
        request: ChatCompletionRequest,
        choices: ChatChoices,
        messages: Messages,
        ids: EventIds,
        stream: EventStream,
    ) -> None:
        self._own = {**own, "object": "chat.completion.chunk"}
        self._request = request
        self._choices = choices
        self._messages = messages
        self._stream = stream
        self._ids = ids
        self._last_tokens: dict[int, int] = {}
        # Of each choice, up to the part that is sent: later ones may have come with it.
        self._num_tokens = Counter[int]()

    async def take(self, parts: Sequence[Part]) -> None:
        """Send parts."""
        await self._stream.write(b"".join(map(self._event, parts)))

    def _event(self, part: Part) -> bytes:
        request, choices, end = self._request, self._choices, part.end
        assert choices.started is not None, "the first event"
        if part.token_ids:
            self._last_tokens[part.index] = part.token_ids[-1]
            self._num_tokens[part.index] += len(part.token_ids)
        # Of those that are left out too: what they hold decides what the next ones mean.
        delta = self._messages.delta(part)
        event_id = self._ids.next(part.index)
        if event_id is None:
            return b""
        choice: dict[str, Any] = {
            "index": part.index,
            "delta": delta,
            "logprobs": joined_logprobs([part.logprobs]),
            "finish_reason": None if end is None else self._messages.finish_reason(end),
            "stop_reason": None,
            "seed": choices.started.seed,
            **failure_of(end),
        }
        if request.return_token_ids:
            choice["token_ids"] = part.token_ids
        if end is not None:
            stop_ids = request.chat.sampling_params.stop_token_ids
            choice["stop_reason"] = stop_reason(end, self._last_tokens.get(part.index), stop_ids)
        content = {**self._own, "system_fingerprint": choices.fingerprint, "choices": [choice]}
        if part.is_first and request.return_prompt_token_ids:
            content["prompt_token_ids"] = list(choices.started.prompt_token_ids)
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
            content = {**self._own, "choices": [], "usage": self._choices.usage}
            last = event_bytes(to_json(content)) + DONE
        await self._stream.end(last)


class WholeChat:
    """Puts all parts together.

    Args:
        own: id, created and model.
        request: to answer.
        choices: whose parts come.
        messages: what their texts mean.
    """

    def __init__(
        self,
        own: dict[str, Any],
        request: ChatCompletionRequest,
        choices: ChatChoices,
        messages: Messages,
    ) -> None:
        self._messages = messages
        self._own = {**own, "object": "chat.completion"}
        self._request = request
        self._choices = choices
        self._parts: dict[int, list[Part]] = {}

    async def take(self, parts: Sequence[Part]) -> None:
        """Keep parts."""
        for part in parts:
            self._parts.setdefault(part.index, []).append(part)
            # As they come: at the end others would wait for all of it.
            self._messages.take(part)

    def content(self) -> dict[str, Any]:
        """Return what the answer says."""
        request, choices = self._request, self._choices
        assert choices.started is not None, "its request has come to its end"
        content = {
            **self._own,
            "system_fingerprint": choices.fingerprint,
            "choices": [self._choice(index) for index in sorted(self._parts)],
            "usage": choices.usage,
        }
        if request.prompt_logprobs is not None:
            content["prompt_logprobs"] = prompt_logprobs(choices.prompt_logprobs)
        if request.return_prompt_token_ids:
            content["prompt_token_ids"] = list(choices.started.prompt_token_ids)
        return content

    def _choice(self, index: int) -> dict[str, Any]:
        parts, started = self._parts[index], self._choices.started
        end = parts[-1].end
        assert started is not None and end is not None, "its request has come to its end"
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        stop_ids = self._request.chat.sampling_params.stop_token_ids
        choice: dict[str, Any] = {
            "index": index,
            "message": self._messages.message(index),
            "logprobs": joined_logprobs([part.logprobs for part in parts]),
            "finish_reason": self._messages.finish_reason(end),
            "stop_reason": stop_reason(end, token_ids[-1] if token_ids else None, stop_ids),
            "seed": started.seed,
            **failure_of(end),
        }
        if self._request.return_token_ids:
            choice["token_ids"] = token_ids
        return choice
