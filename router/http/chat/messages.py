"""What the texts of choices mean, in OpenAI's shape: content, reasoning, and calls of tools."""

from collections.abc import Iterable, Sequence
from typing import Any

from quire.contract.outputs import Finished, FinishReason
from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallBegan,
)
from router.chat.reader import OutputReader
from router.http.chat.choices import Part


class Messages:
    """Writes what a reader makes of the choices of a chat.

    Args:
        reader: of its outputs, which has begun before a part comes that is not the first.
    """

    def __init__(self, reader: OutputReader) -> None:
        self._reader = reader

    def delta(self, part: Part) -> dict[str, Any]:
        """Return what a part adds to its choice; each part is read once, in its order."""
        if part.is_first:
            return {"role": "assistant", "content": ""}
        return _fields(read_part(self._reader, part))

    def message(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the message of a whole choice; its parts are read now."""
        texts = {"content": "", "reasoning_content": ""}
        calls: list[dict[str, Any]] = []
        for part in parts:
            fields = {} if part.is_first else _fields(read_part(self._reader, part))
            for name in texts:
                texts[name] += fields.get(name, "")
            for call in fields.get("tool_calls", ()):
                if "id" in call:
                    calls.append({name: call[name] for name in ("id", "type", "function")})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"]}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        if calls:
            message |= {"content": texts["content"] or None, "tool_calls": calls}
        return message

    def finish_reason(self, end: Finished) -> str:
        """Return why a choice that was read ended."""
        if self._reader.has_called(end.index) and end.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return end.finish_reason.value


def read_part(reader: OutputReader, part: Part) -> list[ParserEvent]:
    """Return what a part means; each is read once, in its order."""
    return reader.read(part.index, part.text, part.token_ids, part.end is not None)


def _fields(events: Iterable[ParserEvent]) -> dict[str, Any]:
    """Return the fields of a delta."""
    fields: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                fields["content"] = fields.get("content", "") + text
            case ReasoningDelta(text):
                fields["reasoning_content"] = fields.get("reasoning_content", "") + text
            case ToolCallBegan(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                calls.append(call)
            case ArgumentsDelta(index, text):
                if not calls or calls[-1]["index"] != index:
                    calls.append({"index": index, "function": {"arguments": ""}})
                calls[-1]["function"]["arguments"] += text
    return {**fields, "tool_calls": calls} if calls else fields
