"""What a response shows: a fixed number of events before its text, one for each token, and an end.

The number of each event is a function of the tokens alone, so a client that comes back names the
last one that it has received, and gets what follows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quire.contract.outputs import Finished, FinishReason, Started
from router.http.chat.choices import Part
from router.http.responses.request import ID_PREFIX
from router.http.resume import fingerprint

ResponseEvent = dict[str, Any]


@dataclass(slots=True)
class ResponseState:
    """A response so far, and the events that its parts are.

    Attributes:
        request_id: of the request.
        model: its name.
        created_at: in seconds since the epoch.
        own: fields that repeat what was asked for.
        started: once it has.
    """

    request_id: str
    model: str
    created_at: int
    own: dict[str, Any]
    started: Started | None = None
    _texts: list[str] = field(default_factory=list)
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _num_tokens: int = 0
    _num_events: int = 0

    def events(self, part: Part) -> Iterator[ResponseEvent]:
        """Yield the events that a part of the answer is, numbered."""
        for event in self._events(part):
            yield {**event, "sequence_number": self._num_events}
            self._num_events += 1

    def _events(self, part: Part) -> Iterator[ResponseEvent]:
        place = {"item_id": f"msg_{self.request_id}", "output_index": 0, "content_index": 0}
        if part.is_first:
            response = self.content()
            yield {"type": "response.created", "response": response}
            yield {"type": "response.in_progress", "response": response}
            item = {**self._item("in_progress"), "content": []}
            yield {"type": "response.output_item.added", "output_index": 0, "item": item}
            yield {"type": "response.content_part.added", **place, "part": self._part()}
            return
        self._texts.append(part.text)
        self._num_tokens += len(part.token_ids)
        logprobs = [] if part.logprobs is None else [part.logprobs]
        self._logprobs += logprobs
        if part.end is None or part.text:
            yield {
                "type": "response.output_text.delta",
                **place,
                "delta": part.text,
                "logprobs": logprobs,
                "token_ids": part.token_ids,
            }
        if part.end is not None:
            yield from self._end(part.end, place)

    def _end(self, end: Finished, place: dict[str, Any]) -> Iterator[ResponseEvent]:
        shown = self._part()
        text = {"text": shown["text"], "logprobs": shown["logprobs"]}
        yield {"type": "response.output_text.done", **place, **text}
        yield {"type": "response.content_part.done", **place, "part": shown}
        response = self.content(end)
        item = response["output"][0]
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
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
            "status": status,
            "model": self.model,
            **self.own,
            "output": [] if end is None else [self._item(status)],
            "usage": None,
            "seed": None if started is None else started.seed,
            "system_fingerprint": (
                None if started is None else fingerprint(started.numerics_id, started.text_id)
            ),
        }
        if status == "incomplete":
            is_length = end is not None and end.finish_reason is FinishReason.LENGTH
            reason = "max_output_tokens" if is_length else "aborted"
            content["incomplete_details"] = {"reason": reason}
        if end is not None:
            content["usage"] = {
                "input_tokens": num_prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self._num_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": num_prompt + self._num_tokens,
            }
        return content

    def _item(self, status: str) -> dict[str, Any]:
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": "".join(self._texts),
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


def _status(end: Finished | None) -> str:
    if end is None:
        return "in_progress"
    return "completed" if end.finish_reason is FinishReason.STOP else "incomplete"
