"""What the texts of choices mean, in OpenAI's shape: content, reasoning, and calls of tools."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from quire.contract.chat import ChatInput
from quire.contract.outputs import Finished, FinishReason, Started
from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallBegan,
)
from router.chat.parsers.formats import NONE, OutputFormat
from router.chat.parsers.machine import OutputParser
from router.http.chat.choices import Part
from router.requests.inference import Inference

# Of a prompt: they show whether it ends within reasoning.
_NUM_LAST_TOKENS = 32


def with_special_tokens(chat: ChatInput, output: OutputFormat) -> ChatInput:
    """Return a chat whose outputs can be read: formats are written with special tokens."""
    if output.reasoning == NONE and (output.tools == NONE or not _tools(chat)):
        return chat
    params = replace(chat.sampling_params, skip_special_tokens=False)
    return replace(chat, sampling_params=params)


class Messages:
    """Reads the choices of a chat, each with a parser of its own.

    Args:
        inference: knows the model's format.
        chat: that is answered.
    """

    def __init__(self, inference: Inference, chat: ChatInput) -> None:
        self._inference = inference
        self._chat = chat
        self._parsers: dict[int, OutputParser | None] = {}
        self._calling: set[int] = set()
        self._last_tokens: dict[int, int] = {}
        eos = {token_id for model in inference.models() for token_id in model.eos_token_ids}
        self._eos = frozenset() if chat.sampling_params.ignore_eos else frozenset(eos)

    def delta(self, part: Part, started: Started) -> dict[str, Any]:
        """Return what a part adds to its choice; each part is read once, in its order."""
        if part.is_first:
            return {"role": "assistant", "content": ""}
        events = self._read(part, started)
        if events is None:
            return {"content": part.text} if part.text or part.end is None else {}
        return _fields(events)

    def message(self, parts: Sequence[Part], started: Started) -> dict[str, Any]:
        """Return the message of a whole choice; its parts are read now."""
        fields: dict[str, Any] = {}
        texts = {"content": "", "reasoning_content": ""}
        calls: list[dict[str, Any]] = []
        for part in parts:
            events = None if part.is_first else self._read(part, started)
            fields = _fields(events) if events is not None else {"content": part.text}
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
        if end.index in self._calling and end.finish_reason is FinishReason.STOP:
            return "tool_calls"
        return end.finish_reason.value

    def _read(self, part: Part, started: Started) -> list[ParserEvent] | None:
        """Return what a part means; None where text is all that there is."""
        if part.index not in self._parsers:
            last = started.prompt_token_ids[-_NUM_LAST_TOKENS:]
            self._parsers[part.index] = self._inference.output_format.of(self._chat).parser(
                self._chat.request_id,
                part.index,
                _tools(self._chat),
                "".join(map(self._inference.token_text, last)),
            )
        parser = self._parsers[part.index]
        if parser is None:
            return None
        events = parser.feed(self._without_eos(part), part.token_ids)
        if part.end is not None:
            events += parser.finish()
        if any(isinstance(event, ToolCallBegan) for event in events):
            self._calling.add(part.index)
        return events

    def _without_eos(self, part: Part) -> str:
        """Return a part's text without that of the token that ended it: special tokens have one."""
        if part.token_ids:
            self._last_tokens[part.index] = part.token_ids[-1]
        last = self._last_tokens.get(part.index)
        if last is None or last not in self._eos:
            return part.text
        return part.text.removesuffix(self._inference.token_text(last))


def _tools(chat: ChatInput) -> Sequence[Any]:
    return () if chat.tool_choice == "none" else chat.tools


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
