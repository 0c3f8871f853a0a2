"""Calls whose arguments stand between tags, each by itself: GLM 4.5 and Qwen3-Coder."""

import json
from collections.abc import Generator, Sequence

from quire.contract.chat import Tool
from router.chat.parsers.events import CallIds
from router.chat.parsers.machine import MAX_HELD_CHARS, Machine
from router.chat.parsers.markers import first_marker, held_suffix
from router.chat.parsers.schema_values import ToolSchema


class TaggedCalls(Machine):
    """Writes tagged arguments as JSON: text stays text where the tool's schema says so.

    Args:
        ids: of the calls.
        tools: whose schemas tell the types of arguments.
    """

    start_markers = ("<tool_call>",)
    end_markers: tuple[str, ...] = ("</tool_call>",)

    def __init__(self, ids: CallIds, tools: Sequence[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}
        # Of the tools that were called: a schema is read once, however many arguments there are.
        self._schemas: dict[str, ToolSchema] = {}
        super().__init__(ids)

    def _broken(self, text: str) -> None:
        """Leave out text of a call that broke: it is tags, where arguments are JSON."""

    def _schema(self, tool: str) -> ToolSchema:
        if tool not in self._tools:
            return ToolSchema(None)
        if tool not in self._schemas:
            self._schemas[tool] = ToolSchema(self._tools[tool])
        return self._schemas[tool]

    def _argument(
        self, tool: str, key: str, ends: Sequence[str], is_first: bool
    ) -> Generator[None]:
        """Read a value up to one of `ends`, and report it as a member of the arguments."""
        self._arguments(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        schema = self._schema(tool)
        if schema.is_text(key):
            yield from self._text_value(ends)
        else:
            text, _ = yield from self._until(ends, MAX_HELD_CHARS)
            self._arguments(schema.value(key, text))

    def _text_value(self, ends: Sequence[str]) -> Generator[None]:
        """A text goes out as it comes: it may be a whole file."""
        self._arguments('"')
        while True:
            found = first_marker(self._text, self._place, ends)
            end = held_suffix(self._text, self._place, ends) if found is None else found[0]
            text = self._text[self._place : end]
            self._arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            self._place = end
            if found is not None:
                self._place += len(found[1])
                self._arguments('"')
                return
            yield from self._more()


class GlmCalls(TaggedCalls):
    """<tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, </tool_call>."""

    def _call(self, marker: str) -> Generator[None]:
        name, marker = yield from self._name("<arg_key>", "</tool_call>")
        if marker == "</tool_call>":
            self._whole_call(name, "{}")
            self._hold()
            return
        self._begin_call(name)
        self._arguments("{")
        is_first = True
        while marker == "<arg_key>":
            key, _ = yield from self._until(("</arg_key>",))
            yield from self._expect("<arg_value>")
            yield from self._argument(name, key.strip(), ("</arg_value>",), is_first)
            is_first = False
            marker = yield from self._expect("<arg_key>", "</tool_call>")
        self._arguments("}")
        self._end_call()


class QwenCoderCalls(TaggedCalls):
    """<tool_call><function=NAME>, <parameter=KEY>VALUE</parameter> ..., </function></tool_call>."""

    end_markers = ("</function>", "</tool_call>")

    def _call(self, marker: str) -> Generator[None]:
        yield from self._expect("<function=")
        name, _ = yield from self._name(">")
        marker = yield from self._expect("<parameter=", "</function>")
        self._begin_call(name)
        self._arguments("{")
        is_first = True
        while marker == "<parameter=":
            key, _ = yield from self._until((">",))
            # One line break at each end is the format's.
            yield from self._has_next(("\n",))
            ends = ("\n</parameter>", "</parameter>")
            yield from self._argument(name, key.strip(), ends, is_first)
            is_first = False
            marker = yield from self._expect("<parameter=", "</function>")
        self._arguments("}")
        self._end_call()
        yield from self._expect("</tool_call>")
