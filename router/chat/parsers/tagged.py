"""Calls whose arguments stand between tags, each by itself: GLM 4.5 and Qwen3-Coder."""

import json
from collections.abc import Generator, Sequence

from quire.contract.chat import Tool
from router.chat.parsers.events import CallIds
from router.chat.parsers.json_scan import SPACE
from router.chat.parsers.machine import (
    MAX_HELD_CHARS,
    EndOfTextError,
    Machine,
    MalformedError,
)
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
    # With which a value ends, and what may follow that.
    ends: tuple[str, ...]
    after: tuple[str, ...]

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

    def _argument(self, tool: str, key: str, is_first: bool) -> Generator[None, None, str]:
        """Read a value, and report it as a member of the arguments; return what follows."""
        self._arguments(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        schema = self._schema(tool)
        if schema.is_text(key):
            yield from self._text_value()
        else:
            text = yield from self._value(schema, key)
            self._arguments(schema.value(key, text))
        return (yield from self._expect(*self.after))

    def _value(self, schema: ToolSchema, key: str) -> Generator[None, None, str]:
        """Read a value up to its end, which texts in JSON may have in them.

        Where it is no JSON, or more likely none, the first end counts.
        """
        self._hold()
        end = start = self._place
        try:
            if (yield from self._peek()) in '{["':
                yield from self._json()
                place = self._place
                yield from self._peek()
                self._check_held(self._place)
                yield from self._expect(*self.ends)
                if schema.is_json(key, self._text[start:place]) or not self._goes_on(start):
                    end = place
        except MalformedError:
            pass
        except EndOfTextError:
            if not (self._is_whole and self._goes_on(start)):
                raise
        json_text = self._text[start:end]
        self._held, self._place = None, end
        text, _ = yield from self._until(self.ends, MAX_HELD_CHARS)
        return json_text + text

    def _goes_on(self, start: int) -> bool:
        """Return whether the call goes on as it should behind the first end of a value."""
        found = first_marker(self._text, start, self.ends)
        if found is None:
            return False
        return self._text[found[0] + len(found[1]) :].lstrip(SPACE).startswith(self.after)

    def _text_value(self) -> Generator[None]:
        """A text goes out as it comes: it may be a whole file."""
        self._arguments('"')
        while True:
            found = first_marker(self._text, self._place, self.ends)
            end = held_suffix(self._text, self._place, self.ends) if found is None else found[0]
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

    ends = ("</arg_value>",)
    after = ("<arg_key>", "</tool_call>")

    def _call(self, marker: str) -> Generator[None]:
        name, marker = yield from self._name(*self.after)
        if marker == "</tool_call>":
            self._whole_call(name, "{}")
            return
        self._begin_call(name)
        self._arguments("{")
        is_first = True
        while marker == "<arg_key>":
            key, _ = yield from self._until(("</arg_key>",))
            yield from self._expect("<arg_value>")
            marker = yield from self._argument(name, key.strip(), is_first)
            is_first = False
        self._arguments("}")
        self._end_call()


class QwenCoderCalls(TaggedCalls):
    """<tool_call><function=NAME>, <parameter=KEY>VALUE</parameter> ..., </function></tool_call>."""

    end_markers = ("</function>", "</tool_call>")
    ends = ("\n</parameter>", "</parameter>")
    after = ("<parameter=", "</function>")

    def _call(self, marker: str) -> Generator[None]:
        yield from self._expect("<function=")
        name, _ = yield from self._name(">")
        marker = yield from self._expect(*self.after)
        self._begin_call(name)
        self._arguments("{")
        is_first = True
        while marker == "<parameter=":
            key, _ = yield from self._until((">",))
            # One line break at each end is the format's.
            yield from self._has_next(("\n",))
            marker = yield from self._argument(name, key.strip(), is_first)
            is_first = False
        self._arguments("}")
        self._end_call()
        yield from self._expect("</tool_call>")
