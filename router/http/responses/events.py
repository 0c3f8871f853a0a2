"""What a response shows: events before its items, those of each item as it grows, and an end.

The number of each event is a function of the tokens alone, so a client that comes back names the
last one that it has received, and gets what follows it.
"""

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from quire.contract.outputs import Finished, FinishReason, Started
from router.chat.reader import OutputReader
from router.http.chat.choices import Part
from router.http.errors import status_of
from router.http.responses.outputs import OutputItems, ResponseEvent
from router.http.responses.request import ID_PREFIX
from router.http.resume import fingerprint
from router.http.segments import Added, Began, Ended, Kind, Segments


class ResponseState:
    """A response so far, and the events that its parts are.

    Args:
        request_id: of the request.
        model: its name.
        created_at: in seconds since the epoch.
        own: fields that repeat what was asked for.
        reader: of its output.

    Attributes:
        request_id, model, created_at, own: as given.
        started: once it has.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        created_at: int,
        own: dict[str, Any],
        reader: OutputReader,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.created_at = created_at
        self.own = own
        self.started: Started | None = None
        self._reader = reader
        self._segments = Segments(reader)
        self._items = OutputItems(request_id)
        self._num_tokens = 0
        self._num_reasoning_tokens = 0
        self._num_events = 0
        # Of tokens whose meaning depends on those that follow.
        self._token_ids: list[int] = []
        self._logprobs: list[dict[str, Any]] = []

    def start(self, started: Started) -> None:
        """Take the start of the request, before any part."""
        self.started = started
        self._reader.begin(started.prompt_token_ids)

    def events(self, part: Part) -> Iterator[ResponseEvent]:
        """Yield the events that a part of the answer is, numbered; the last shows its token ids."""
        self._num_tokens += len(part.token_ids)
        self._token_ids += part.token_ids
        if part.logprobs is not None:
            self._logprobs.append(part.logprobs)
        events = list(self._events(part))
        if events and self._token_ids:
            events[-1]["token_ids"], self._token_ids = self._token_ids, []
        for event in events:
            yield {**event, "sequence_number": self._num_events}
            self._num_events += 1

    def _events(self, part: Part) -> Iterator[ResponseEvent]:
        if part.is_first:
            response = self.content()
            yield {"type": "response.created", "response": response}
            yield {"type": "response.in_progress", "response": response}
        steps = list(self._segments.take(part))
        if not steps and part.token_ids and self._segments.open is not None:
            steps.append(Added(self._segments.open, ""))
        for step in steps:
            match step:
                case Began(segment):
                    yield from self._items.began(segment)
                case Added(segment, text):
                    logprobs, self._logprobs = self._logprobs, []
                    yield from self._items.added(segment, text, logprobs)
                case Ended(segment):
                    status = "completed" if part.end is None else _status(part.end)
                    status = status if segment.is_whole else "incomplete"
                    yield from self._items.ended(segment, status)
        if steps and steps[-1].segment.kind is Kind.REASONING:
            self._num_reasoning_tokens += len(self._token_ids)
        if part.end is not None:
            response = self.content(part.end)
            yield {"type": f"response.{response['status']}", "response": response}

    def content(self, end: Finished | None = None) -> dict[str, Any]:
        """Return the response as an object.

        Args:
            end: of its text; None before.
        """
        status, started = _status(end), self.started
        num_prompt = 0 if started is None else started.num_prompt_tokens
        content: dict[str, Any] = {
            "id": f"{ID_PREFIX}{self.request_id}",
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "model": self.model,
            **self.own,
            "output": [] if end is None else self._items.done,
            "usage": None,
            "seed": None if started is None else started.seed,
            "system_fingerprint": None if started is None else fingerprint(started),
        }
        if started is not None:
            # What the request left open, as the model's own file has it.
            content |= {
                name: value for name, value in started.sampling_defaults.items() if name in self.own
            }
        if status == "incomplete":
            is_length = end is not None and end.finish_reason is FinishReason.LENGTH
            reason = "max_output_tokens" if is_length else "aborted"
            content["incomplete_details"] = {"reason": reason}
        if status == "failed":
            content["error"] = _failure(end)
        if end is not None:
            content["usage"] = {
                "input_tokens": num_prompt,
                "input_tokens_details": {
                    "cached_tokens": end.num_cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": self._num_tokens,
                "output_tokens_details": {"reasoning_tokens": self._num_reasoning_tokens},
                "total_tokens": num_prompt + self._num_tokens,
            }
        return content


_STATUSES = {
    FinishReason.STOP: "completed",
    FinishReason.ERROR: "failed",
    FinishReason.NO_TOKEN: "failed",
}


def _failure(end: Finished | None) -> dict[str, str]:
    """Return the field of a response that says why it has failed."""
    error = None if end is None else end.finish_reason.error
    assert error is not None, "it has failed"
    # Of the codes of OpenAI's Response, the ones for a server's fault and for a client's.
    is_ours = status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR
    return {"code": "server_error" if is_ours else "invalid_prompt", "message": error.message}


def _status(end: Finished | None) -> str:
    if end is None:
        return "in_progress"
    return _STATUSES.get(end.finish_reason, "incomplete")
