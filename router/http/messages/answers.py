"""Answers of /v1/messages: the blocks of a message as events, or as one object.

https://docs.claude.com/en/docs/build-with-claude/streaming
"""

import json
from collections.abc import Iterator
from typing import Any

from quire.contract.outputs import Finished, FinishReason
from router.chat.reader import OutputReader
from router.chat.template_values import INVALID_JSON
from router.http.chat.choices import ChatChoices, Part
from router.http.chat.opening import OpenChat
from router.http.event_stream import event_bytes
from router.http.messages.request import MessageRequest
from router.http.segments import Added, Began, Ended, Kind, Segment, Segments

PING = event_bytes(b'{"type":"ping"}', event="ping")
_DELTAS = {
    Kind.CONTENT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}

MessageEvent = dict[str, Any]


class MessageAnswer:
    """What an answer shows so far.

    Args:
        opened: the conversation.
        request: to answer.
        choices: whose parts come.
        reader: of its output.
    """

    def __init__(
        self, opened: OpenChat, request: MessageRequest, choices: ChatChoices, reader: OutputReader
    ) -> None:
        self._opened = opened
        self._request = request
        self._choices = choices
        self._reader = reader
        self._segments = Segments(reader)
        self._token_ids: list[int] = []
        self._end: Finished | None = None

    def events(self, part: Part) -> Iterator[MessageEvent]:
        """Yield the events that a part is, at least one: the last of them shows its token ids."""
        events = list(self._events(part))
        self._token_ids += part.token_ids
        if part.token_ids and self._request.return_token_ids:
            events[-1]["token_ids"] = part.token_ids
        yield from events

    def _events(self, part: Part) -> Iterator[MessageEvent]:
        if part.is_first:
            yield {"type": "message_start", "message": self.message()}
        is_silent = bool(part.token_ids)
        for step in self._segments.take(part):
            is_silent = False
            index = step.segment.index
            match step:
                case Began(segment):
                    block = _block(segment)
                    yield {"type": "content_block_start", "index": index, "content_block": block}
                case Added(segment, text):
                    yield _delta(segment, text)
                case Ended():
                    yield {"type": "content_block_stop", "index": index}
        if is_silent:
            # What the token means depends on those that follow.
            segment_now = self._segments.open
            yield {"type": "ping"} if segment_now is None else _delta(segment_now, "")
        if part.end is not None:
            if (error := part.end.finish_reason.error) is not None:
                raise error  # no stop_reason of Anthropic's means it
            self._end = part.end
            yield {"type": "message_delta", "delta": self._reasons(), "usage": self._usage()}
            yield {"type": "message_stop"}

    def message(self) -> dict[str, Any]:
        """Return the message as it is now: whole, once its end was taken."""
        started = self._choices.started
        assert started is not None, "the first event"
        is_whole, request = self._end is not None, self._request
        message: dict[str, Any] = {
            "id": f"msg_{started.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._opened.model,
            "content": [_block(each, is_whole) for each in self._segments.found],
            **self._reasons(),
            "usage": self._usage(),
            "created": self._opened.created,
            "seed": started.seed,
            "system_fingerprint": self._choices.fingerprint,
        }
        if is_whole and request.return_token_ids:
            message["token_ids"] = self._token_ids
        if request.return_prompt_token_ids:
            message["prompt_token_ids"] = started.prompt_token_ids
        return message

    def _usage(self) -> dict[str, int]:
        usage, num_cached = self._choices.usage, self._choices.num_cached_tokens
        return {
            # Those that the cache had are counted apart.
            "input_tokens": usage["prompt_tokens"] - num_cached,
            "output_tokens": usage["completion_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
        }

    def _reasons(self) -> dict[str, str | None]:
        reason = self._stop_reason()
        shown = self._end is not None and reason == "stop_sequence"
        stop_str = self._end.stop_str if shown and self._end else None
        return {"stop_reason": reason, "stop_sequence": stop_str}

    def _stop_reason(self) -> str | None:
        end, started = self._end, self._choices.started
        if end is None or started is None:
            return None
        match end.finish_reason:
            case FinishReason.LENGTH:
                asked = self._request.chat.sampling_params.max_tokens or 0
                is_full = started.max_tokens < asked
                return "model_context_window_exceeded" if is_full else "max_tokens"
            case FinishReason.STOP if self._reader.has_called(end.index):
                return "tool_use"
            case FinishReason.STOP:
                return "end_turn" if end.stop_str is None else "stop_sequence"
            case other:
                return str(other.value)


def _block(segment: Segment, is_whole: bool = False) -> dict[str, Any]:
    """Return a content block, with its text only where that is whole."""
    text = segment.text if is_whole else ""
    match segment.kind:
        case Kind.CONTENT:
            return {"type": "text", "text": text}
        case Kind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case Kind.CALL:
            assert segment.call is not None, "it is one"
            call_id, name = segment.call.id, segment.call.name
            arguments = _arguments(text) if is_whole else {}
            return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _delta(segment: Segment, text: str) -> MessageEvent:
    kind, name = _DELTAS[segment.kind]
    delta = {"type": kind, name: text}
    return {"type": "content_block_delta", "index": segment.index, "delta": delta}


def _arguments(text: str) -> dict[str, Any]:
    if not text:
        return {}  # as a block begins, to which a stream would have added none
    try:
        value = json.loads(text)
        # Neither half a character nor an infinity is sent: no client could read the answer.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: text}
