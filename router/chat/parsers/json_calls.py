"""Calls as JSON objects, {"name": ..., "arguments": {...}}: Hermes, Qwen, Llama 3 and Mistral."""

import json
import re
from collections.abc import Generator, Sequence

from quire.contract.chat import Tool
from router.chat.parsers.events import CallIds
from router.chat.parsers.machine import EndOfTextError, Machine, MalformedError, checked_name

_ARGUMENTS = ("arguments", "parameters")
# Others that models write beside them say nothing.
_OTHERS = ("id", "type")
# How the object of a call begins, with its name so far.
_BEGINNINGS = ('{"name":"', '{"type":"function","name":"')
_HEAD = re.compile(r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"]*)("?)')


class JsonCalls(Machine):
    """Reads calls that are JSON objects; what is around them is the format's."""

    def _object(self) -> Generator[None]:
        """Read an object that is a call.

        It is reported once its name is known and its arguments begin, in whichever order.
        """
        name = arguments = ""
        is_complete = False
        yield from self._expect("{")
        while True:
            if (yield from self._peek()) != '"':
                raise MalformedError
            key = json.loads((yield from self._json()))
            is_known = key in ("name", *_ARGUMENTS, *_OTHERS)
            if not (is_known or is_complete):
                raise MalformedError
            yield from self._expect(":")
            if not is_known:
                yield from self._peek()
                yield from self._json()
            elif key in _ARGUMENTS:
                if arguments or is_complete:
                    raise MalformedError
                if name:
                    yield from self._json_arguments(name)
                    is_complete = True
                elif (yield from self._peek()) == "{":
                    arguments = yield from self._json()
                else:
                    raise MalformedError
            else:
                value = yield from self._string()
                if key == "name":
                    if name:
                        raise MalformedError
                    name = checked_name(value)
            if name and arguments and not is_complete:
                self._whole_call(name, arguments)
                is_complete = True
            if (yield from self._expect(",", "}")) == "}":
                break
        if not is_complete:
            if not name:
                raise MalformedError
            self._whole_call(name, "{}")
        self._hold()

    def _string(self) -> Generator[None, None, str]:
        if (yield from self._peek()) != '"':
            raise MalformedError
        return str(json.loads((yield from self._json())))


class HermesCalls(JsonCalls):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one for each call."""

    start_markers = ("<tool_call>",)
    end_markers = ("</tool_call>",)

    def _call(self, marker: str) -> Generator[None]:
        yield from self._object()
        yield from self._expect("</tool_call>")


class Llama3Calls(JsonCalls):
    """{"name": ..., "parameters": {...}}, at the beginning or after <|python_tag|>, ";" between."""

    start_markers = ("<|python_tag|>",)

    def __init__(self, ids: CallIds, tools: Sequence[Tool] = ()) -> None:
        self._names = [tool.name for tool in tools]
        super().__init__(ids)

    def _start(self) -> Generator[None]:
        self._hold()
        self._is_closing = False
        if (yield from self._peek()) != "{":
            raise MalformedError
        try:
            yield from self._objects()
        except EndOfTextError:
            # An answer may be JSON too: it was a call if it could have become that of a tool.
            self._is_marked = self._may_call(self._text[self._again :])
            raise

    def _may_call(self, text: str) -> bool:
        head = _HEAD.match(text)
        if head is None:
            beginning = "".join(text.split())
            least = _BEGINNINGS[0][:6] if self._is_whole else "{"
            return beginning.startswith(least) and any(
                each.startswith(beginning) for each in _BEGINNINGS
            )
        is_named = bool(head[2])
        return any(
            name == head[1] if is_named else name.startswith(head[1]) for name in self._names
        )

    def _call(self, marker: str) -> Generator[None]:
        yield from self._objects()

    def _objects(self) -> Generator[None]:
        while True:
            yield from self._object()
            if not (yield from self._follows(";")):
                break
            yield from self._peek()


class MistralCalls(JsonCalls):
    """[TOOL_CALLS] and a list of calls as JSON; or of each call its name, [ARGS] and arguments."""

    start_markers = ("[TOOL_CALLS]",)

    def _call(self, marker: str) -> Generator[None]:
        if (yield from self._peek()) == "[":
            yield from self._expect("[")
            yield from self._object()
            while (yield from self._expect(",", "]")) == ",":
                yield from self._object()
            return
        name, marker = yield from self._name("[ARGS]", "[CALL_ID]", "{")
        if marker == "[CALL_ID]":
            # Of a call that the model makes up; ours can be made again.
            _, marker = yield from self._until(("[ARGS]", "{"))
        if marker == "{":
            self._place -= 1
        yield from self._json_arguments(name)
