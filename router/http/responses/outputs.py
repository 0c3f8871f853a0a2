"""The items of a response's output: messages, reasoning and function calls, as they grow.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import Iterator
from typing import Any

from router.http.segments import Kind, Segment

ResponseEvent = dict[str, Any]

_ID_PREFIXES = {Kind.CONTENT: "msg_", Kind.REASONING: "rs_", Kind.CALL: "fc_"}
_TEXTS = {
    Kind.CONTENT: "response.output_text",
    Kind.REASONING: "response.reasoning_text",
    Kind.CALL: "response.function_call_arguments",
}


class OutputItems:
    """Makes items of the segments of an output, one after the other, and the events that they are.

    Args:
        request_id: of which the ids of items are made.

    Attributes:
        done: items that have ended.
    """

    def __init__(self, request_id: str) -> None:
        self.done: list[dict[str, Any]] = []
        self._request_id = request_id
        # Of the message that goes on.
        self._logprobs: list[dict[str, Any]] = []

    def began(self, segment: Segment) -> Iterator[ResponseEvent]:
        """Yield the events of an item that begins."""
        self._logprobs = []
        # Its text may have come with it, and is what the events after these add.
        item = self._item(segment, "in_progress", "")
        has_parts = "content" in item
        if has_parts:
            item["content"] = []
        place = {"output_index": segment.index}
        yield {"type": "response.output_item.added", **place, "item": item}
        if has_parts:
            part = self._part(segment, "")
            yield {"type": "response.content_part.added", **self._place(segment), "part": part}

    def added(
        self, segment: Segment, text: str, logprobs: list[dict[str, Any]]
    ) -> Iterator[ResponseEvent]:
        """Yield the event of an item that has more text.

        Args:
            segment: of the item.
            text: may be empty.
            logprobs: of its tokens, which messages show.
        """
        shown = {}
        if segment.kind is Kind.CONTENT:
            self._logprobs += logprobs
            shown = {"logprobs": logprobs}
        kind = f"{_TEXTS[segment.kind]}.delta"
        yield {"type": kind, **self._place(segment), "delta": text, **shown}

    def ended(self, segment: Segment, status: str) -> Iterator[ResponseEvent]:
        """Yield the events of an item that ends.

        Args:
            segment: of the item.
            status: "completed" or "incomplete".
        """
        place, item = self._place(segment), self._item(segment, status, segment.text)
        kind = f"{_TEXTS[segment.kind]}.done"
        if segment.kind is Kind.CALL:
            yield {"type": kind, **place, "name": item["name"], "arguments": item["arguments"]}
        else:
            part = self._part(segment, segment.text)
            shown: dict[str, Any] = {
                name: part[name] for name in ("text", "logprobs") if name in part
            }
            yield {"type": kind, **place, **shown}
            yield {"type": "response.content_part.done", **place, "part": part}
        self.done.append(item)
        place = {"output_index": segment.index}
        yield {"type": "response.output_item.done", **place, "item": item}

    def _place(self, segment: Segment) -> dict[str, Any]:
        place = {"item_id": self._id(segment), "output_index": segment.index}
        return place if segment.kind is Kind.CALL else {**place, "content_index": 0}

    def _id(self, segment: Segment) -> str:
        suffix = f"_{segment.index}" if segment.index else ""
        return f"{_ID_PREFIXES[segment.kind]}{self._request_id}{suffix}"

    def _item(self, segment: Segment, status: str, text: str) -> dict[str, Any]:
        own = {"id": self._id(segment), "status": status}
        match segment.kind:
            case Kind.CONTENT:
                content = [self._part(segment, text)]
                return {**own, "type": "message", "role": "assistant", "content": content}
            case Kind.REASONING:
                content = [self._part(segment, text)]
                return {**own, "type": "reasoning", "summary": [], "content": content}
            case Kind.CALL:
                assert segment.call is not None, "it is one"
                call = {"call_id": segment.call.id, "name": segment.call.name}
                return {**own, "type": "function_call", **call, "arguments": text}

    def _part(self, segment: Segment, text: str) -> dict[str, Any]:
        if segment.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": text}
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
