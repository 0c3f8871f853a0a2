"""Calls as JSON objects, {"name": ..., "arguments": {...}}: Hermes, Qwen, Llama 3 and Mistral."""

import json
from collections.abc import Generator

from router.chat.parsers.machine import Machine, MalformedError, checked_name

_ARGUMENTS = ("arguments", "parameters")
# Others that models write beside them say nothing.
_OTHERS = ("id", "type")


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
            if key not in ("name", *_ARGUMENTS, *_OTHERS):
                raise MalformedError
            yield from self._expect(":")
            if key in _ARGUMENTS:
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

    def _string(self) -> Generator[None, None, str]:
        if (yield from self._peek()) != '"':
            raise MalformedError
        return str(json.loads((yield from self._json())))

    def _follows(self, *markers: str) -> Generator[None, None, str]:
        """Read a marker that may stand after spaces; without one, the spaces stay as they are."""
        place = self._place
        yield from self._peek()
        found = yield from self._has_next(markers)
        if not found:
            self._place = place
        return found


class HermesCalls(JsonCalls):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one for each call."""

    start_markers = ("<tool_call>",)

    def _call(self, marker: str) -> Generator[None]:
        while marker:
            yield from self._object()
            yield from self._expect("</tool_call>")
            # The spaces between two calls are no content; those before other text are.
            self._hold()
            marker = yield from self._follows("<tool_call>")
            if marker:
                self._is_closing = False
                self._hold(self._place - len(marker))


class Llama3Calls(JsonCalls):
    """{"name": ..., "parameters": {...}}, at the beginning or after <|python_tag|>, ";" between."""

    start_markers = ("<|python_tag|>",)

    def _start(self) -> Generator[None]:
        self._hold()
        self._is_closing = False
        if (yield from self._peek()) == "{":
            yield from self._objects()
        else:
            raise MalformedError

    def _call(self, marker: str) -> Generator[None]:
        yield from self._objects()

    def _objects(self) -> Generator[None]:
        while True:
            yield from self._object()
            self._hold()
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
