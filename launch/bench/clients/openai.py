"""OpenAI's APIs: completions, chat completions and responses."""

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from launch.bench.clients.base import RequestFailedError
from launch.bench.clients.http import HttpClient, message_of
from launch.bench.datasets import Sample
from launch.bench.outcome import Outcome
from launch.bench.serve_options import BackendName

MOST_PROMPT_TOKENS = 2**24
# Each has a time of its own once all is measured.
MOST_OUTPUT_TOKENS = 2**20


class Api(Protocol):
    """One of OpenAI's APIs."""

    path: str
    takes_token_ids: bool

    def body(self, sample: Sample) -> dict[str, Any]:
        """Return the fields by which this API asks for an answer."""

    def take(self, at: float, event: dict[str, Any], outcome: Outcome) -> None:
        """Note an event of the answer.

        Args:
            at: when it was read.
            event: of the stream.
            outcome: of the request.
        """


class Completions:
    """`/v1/completions`: a prompt is continued, also one of token ids."""

    path = "/v1/completions"
    takes_token_ids = True

    def body(self, sample: Sample) -> dict[str, Any]:  # noqa: D102 - as of Api
        return {
            "prompt": sample.prompt,
            "max_tokens": sample.num_output_tokens,
            "stream_options": {"include_usage": True},
        }

    def take(self, at: float, event: dict[str, Any], outcome: Outcome) -> None:  # noqa: D102
        num_tokens = _take_usage(event.get("usage"), outcome)
        for choice in event.get("choices") or ():
            text = choice.get("text") or ""
            # A token may have no text of its own, and still is one.
            weight = num_tokens or len(text) or int(choice.get("finish_reason") is None)
            _take_choice(at, choice, text, weight, outcome)


class Chat:
    """`/v1/chat/completions`: the prompt is a user's message."""

    path = "/v1/chat/completions"
    takes_token_ids = False

    def body(self, sample: Sample) -> dict[str, Any]:  # noqa: D102
        return {
            "messages": [{"role": "user", "content": sample.prompt}],
            "max_completion_tokens": sample.num_output_tokens,
            "stream_options": {"include_usage": True},
        }

    def take(self, at: float, event: dict[str, Any], outcome: Outcome) -> None:  # noqa: D102
        num_tokens = _take_usage(event.get("usage"), outcome)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            # A server may send reasoning by both of its names.
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            texts = [reasoning, delta.get("content")]
            texts += [
                (call.get("function") or {}).get("arguments")
                for call in delta.get("tool_calls") or ()
            ]
            text = "".join(filter(None, texts))
            # The first event may have a role alone, before any token.
            _take_choice(at, choice, text, num_tokens or len(text), outcome)


class Responses:
    """`/v1/responses`: the prompt is the input."""

    path = "/v1/responses"
    takes_token_ids = False
    _ENDS = ("response.completed", "response.incomplete")
    _FAULTS = ("response.failed", "error")

    def body(self, sample: Sample) -> dict[str, Any]:  # noqa: D102
        return {"input": sample.prompt, "max_output_tokens": sample.num_output_tokens}

    def take(self, at: float, event: dict[str, Any], outcome: Outcome) -> None:  # noqa: D102
        kind = str(event.get("type"))
        if kind.endswith(".delta"):
            text = event.get("delta")
            if isinstance(text, str) and text:
                outcome.texts.append(text)
                outcome.arrivals.add(at, len(text))
                outcome.ended = at
        elif kind in self._ENDS:
            _take_usage(event["response"].get("usage"), outcome)
            outcome.ended = at
            outcome.is_complete = True
        elif kind in self._FAULTS:
            fault = message_of(event.get("response") or event) or event.get("message")
            raise RequestFailedError(str(fault or kind))


def _take_usage(usage: Mapping[str, Any] | None, outcome: Outcome) -> int:
    """Note what the server has counted.

    Returns:
        Tokens that an event has brought, 0 if its server counts them in the end alone.
    """
    if not usage:
        return 0
    for name in ("prompt_tokens", "input_tokens"):
        if usage.get(name) is not None:
            outcome.num_prompt_tokens = _count(usage, name, MOST_PROMPT_TOKENS)
    for name in ("completion_tokens", "output_tokens"):
        if usage.get(name) is not None:
            before = outcome.num_output_tokens
            outcome.num_output_tokens = _count(usage, name, MOST_OUTPUT_TOKENS)
            counts_each = before is not None or not len(outcome.arrivals)
            return max(0, outcome.num_output_tokens - (before or 0)) if counts_each else 0
    return 0


def _count(usage: Mapping[str, Any], name: str, most: int) -> int:
    value = usage[name]
    if type(value) is not int or not 0 <= value <= most:
        raise RequestFailedError(
            f"usage.{name}: must be an integer in [0, {most}], got {str(value)[:80]}"
        )
    return value


def _take_choice(
    at: float, choice: Mapping[str, Any], text: str, weight: int, outcome: Outcome
) -> None:
    """Note what a choice of an event has brought.

    Args:
        at: when it was read.
        choice: of the event.
        text: what it adds to the answer.
        weight: as of `Arrivals.add`, where the choice has no token ids; 0 if it brought no token.
        outcome: of the request.
    """
    if text:
        outcome.texts.append(text)
    weight = len(choice.get("token_ids") or ()) or weight
    if weight:
        outcome.arrivals.add(at, weight)
    outcome.ended = at
    outcome.is_complete |= choice.get("finish_reason") is not None


APIS: dict[str, type[Api]] = {
    BackendName.OPENAI: Completions,
    BackendName.VLLM: Completions,
    BackendName.OPENAI_CHAT: Chat,
    BackendName.OPENAI_RESPONSES: Responses,
}


class OpenAiClient:
    """A client of one of OpenAI's APIs.

    Args:
        http: connections.
        api: which of them.
        path: where it is; None for the usual place.
        fields: of each request: sampling parameters, and others.
        more_fields: that go before all others; None leaves one out.
    """

    def __init__(
        self,
        http: HttpClient,
        api: Api,
        path: str | None,
        fields: Mapping[str, Any],
        more_fields: Mapping[str, Any],
    ) -> None:
        self.model = ""
        self._http, self._api, self._path = http, api, path or api.path
        self._fields, self._more_fields = fields, more_fields

    async def first_model(self) -> str:
        """Return the name of the first model that the server lists; errors as of BenchClient."""
        listed = await self._http.get("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (LookupError, TypeError):
            raise RequestFailedError(
                f"GET /v1/models: must list a model, got {str(listed)[:200]}"
            ) from None

    async def send(self, sample: Sample, outcome: Outcome) -> None:
        """Send a request and read its answer; as BenchClient."""
        model = {"model": self.model} if self.model else {}
        fields = {**model, **self._api.body(sample), "stream": True, **self._fields}
        fields |= self._more_fields
        body = json.dumps({name: each for name, each in fields.items() if each is not None})

        def take(at: float, event: dict[str, Any]) -> None:
            fault = message_of(event)
            if fault is not None:
                raise RequestFailedError(fault)
            try:
                self._api.take(at, event, outcome)
            except (AttributeError, LookupError, TypeError, ValueError):
                raise RequestFailedError(
                    f"event: must be one of {self._path}, got {str(event)[:200]}"
                ) from None

        outcome.started = outcome.ended = time.perf_counter()
        is_done = await self._http.stream(self._path, body.encode(), take)
        if not (is_done or outcome.is_complete):
            raise RequestFailedError("stream: must end with a finish_reason or [DONE], got neither")
        # Several tokens without a time would have taken none.
        if (outcome.num_output_tokens or 0) > 1 and not len(outcome.arrivals):
            raise RequestFailedError(
                f"no event brought a token, of {outcome.num_output_tokens} by its usage"
            )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
