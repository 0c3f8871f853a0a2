"""What the texts of choices mean, in OpenAI's shape: content, reasoning, and calls of tools."""

from typing import Any

from quire.contract.outputs import Finished, FinishReason, ToolCallDelta
from router.chat.parsers.events import ParserEvent
from router.chat.reader import OutputReader, parsed_output
from router.http.chat.choices import Part


class Messages:
    """Writes what a reader makes of the choices of a chat.

    Args:
        reader: of its outputs, which has begun before a part comes that is not the first.
        shows_reasoning: whether reasoning is part of the answer.
    """

    def __init__(self, reader: OutputReader, shows_reasoning: bool = True) -> None:
        self._reader = reader
        self._shows_reasoning = shows_reasoning
        # Of each choice that is not streamed.
        self._events: dict[int, list[ParserEvent]] = {}
        # Choices that are streamed and have shown text, or a call.
        self._shown: set[int] = set()

    def delta(self, part: Part) -> dict[str, Any]:
        """Return what a part adds to its choice; each part is read once, in its order."""
        if part.is_first:
            return {"role": "assistant", "content": "" if self._reader.is_plain else None}
        parsed = parsed_output(read_part(self._reader, part))
        delta: dict[str, Any] = {}
        if parsed.content or (self._reader.is_plain and part.end is None):
            delta["content"] = parsed.content
        if parsed.content or parsed.tool_calls:
            self._shown.add(part.index)
        elif part.end is not None and not self._reader.is_plain and part.index not in self._shown:
            delta["content"] = ""  # as the message has it, where no call stands in its place
        delta |= self._reasoning(parsed.reasoning)
        if parsed.tool_calls:
            delta["tool_calls"] = [
                {"index": call.index, **_call(call)} for call in parsed.tool_calls
            ]
        return delta

    def take(self, part: Part) -> None:
        """Read a part of a choice that is to be a message; each is read once, in its order."""
        if not part.is_first:
            self._events.setdefault(part.index, []).extend(read_part(self._reader, part))

    def message(self, index: int) -> dict[str, Any]:
        """Return the message of a choice that was taken to its end."""
        parsed = parsed_output(self._events[index])
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        message |= self._reasoning(parsed.reasoning)
        if parsed.tool_calls:
            message["content"] = parsed.content or None
            message["tool_calls"] = list(map(_call, parsed.tool_calls))
        return message

    def _reasoning(self, text: str) -> dict[str, Any]:
        """Return fields that show reasoning, by both names that clients know it under."""
        shown = text and self._shows_reasoning
        return {"reasoning": text, "reasoning_content": text} if shown else {}

    def finish_reason(self, end: Finished) -> str:
        """Return why a choice that was read ended."""
        if self._reader.has_called(end.index) and end.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return end.finish_reason.shown


def read_part(reader: OutputReader, part: Part) -> list[ParserEvent]:
    """Return what a part means; each is read once, in its order."""
    end = None if part.end is None else part.end.finish_reason
    return reader.read(part.index, part.text, part.token_ids, end)


def _call(call: ToolCallDelta) -> dict[str, Any]:
    """Return a call, or what is added to one that has begun."""
    if not call.id:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
