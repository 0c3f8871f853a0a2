"""Grammars of outputs that have a format around them, in the Lark dialect of llguidance."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire import finite_json
from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from quire.json_schemas import moved, readable
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.formats import (
    HARMONY,
    HARMONY_REASONING,
    REASONING_PARSERS,
    OutputFormat,
)
from router.chat.parsers.lark import Rules, quoted
from router.chat.parsers.members import Tags, any_arguments, tagged_arguments
from router.chat.parsers.shapes import NotServedError

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_TOOL_CALL = "<tool_call>"
# With which the first call begins; the others of a format do too, unless it is DeepSeek's.
_MARKERS = {
    "llama3_json": "",
    HARMONY: "",
    "hermes": _TOOL_CALL,
    "glm45": _TOOL_CALL,
    "qwen3_coder": _TOOL_CALL,
    "mistral": "[TOOL_CALLS]",
    "deepseek_v3": deepseek.CALLS_BEGIN,
    "deepseek_v31": deepseek.CALLS_BEGIN,
}
_GLM_TAGS = Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</arg_value>")
_QWEN_TAGS = Tags("<parameter=", ">\n", "\n</parameter>", "</parameter>")
_TOO_DEEP = "must be nested less deeply"
_NO_TEXT = "must be Unicode text, got half of a surrogate pair"
_PYTHON_TAG = "<|python_tag|>"


def forced_call(
    output: OutputFormat,
    tools: Sequence[Tool],
    name: str = "",
    added_tokens: Mapping[str, int] | None = None,
    is_reasoning: bool = False,
    is_single: bool = False,
) -> str:
    """Return the grammar of an output that calls tools, and says nothing else.

    Args:
        output: the model's format; one without tool calls gets those of Hermes.
        tools: that may be called; their parameters are JSON objects.
        name: the one to be called, once; "" lets the model choose, and call several.
        added_tokens: ids of the tokenizer's added tokens, special or not, by text: a grammar
            matches these by id alone.
        is_reasoning: the output begins within reasoning, which may end first.
        is_single: one call at most, whichever it is.

    Raises:
        InvalidRequestError: parameters of a tool are no schema of an object, or have what cannot be
            obeyed.
    """
    return _Grammar(output, added_tokens or {}).forced(
        {place: tool for place, tool in enumerate(tools) if name in ("", tool.name)},
        is_reasoning,
        is_single or bool(name),
    )


def call_or_answer(
    output: OutputFormat,
    tools: Sequence[Tool],
    answer: str | None,
    added_tokens: Mapping[str, int] | None = None,
    is_reasoning: bool = False,
    is_single: bool = False,
) -> str:
    """Return the grammar of an output that calls tools, or answers.

    Arguments are of a tool's schema where it is strict, any others elsewhere.

    Args:
        output: the model's format, which has tool calls.
        tools: that may be called.
        answer: what derives the answer, an expression of Lark; None for any text, which may come
            before a call too.
        added_tokens: as of `forced_call`.
        is_reasoning: as of `forced_call`.
        is_single: as of `forced_call`.

    Raises:
        InvalidRequestError: as `forced_call`.
    """
    placed = dict(enumerate(tools))
    return _Grammar(output, added_tokens or {}).either(placed, answer, is_reasoning, is_single)


def answer_after_reasoning(
    output: OutputFormat, answer: str, added_tokens: Mapping[str, int] | None = None
) -> str:
    """Return the grammar of an output that begins within reasoning, or may, and then answers.

    Args:
        output: the model's format, which has reasoning.
        answer: what derives the answer, an expression of Lark.
        added_tokens: ids of the tokenizer's added tokens, special or not, by text.
    """
    return _Grammar(output, added_tokens or {}).answer(answer)


def schema_of(place: int, tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments, as one of an object.

    Args:
        place: of the tool among all of them.
        tool: whose schema it is.

    Raises:
        InvalidRequestError: it is none.
    """
    field = field_of(place)
    try:
        schema = finite_json.loads(tool.parameters) if tool.parameters else _ANY_OBJECT
        schema = readable(schema)
        json.dumps(schema, ensure_ascii=False).encode()
    except RecursionError:
        raise InvalidRequestError(field, _TOO_DEEP) from None
    except UnicodeEncodeError:
        raise InvalidRequestError(field, _NO_TEXT) from None
    except ValueError:
        raise InvalidRequestError(field, "must be a JSON object, got other text") from None
    stated = schema.get("type", "object") if isinstance(schema, dict) else None
    is_object = stated == "object" or (isinstance(stated, list) and "object" in stated)
    if not is_object or not isinstance(schema.get("properties", {}), dict):
        raise InvalidRequestError(field, "must be the JSON schema of an object, got another value")
    return {**schema, "type": "object"}


def field_of(place: int) -> str:
    """Return what messages call the schema of the tool at a place."""
    return f"tools[{place}].parameters"


class _Grammar:
    def __init__(self, output: OutputFormat, added_tokens: Mapping[str, int]) -> None:
        self._output = output
        self._rules = Rules(added_tokens)
        self._marker = _MARKERS.get(output.tools, _TOOL_CALL)

    def forced(self, tools: Mapping[int, Tool], is_reasoning: bool, is_single: bool) -> str:
        marker = self._rules.mark(self._marker) if self._marker else ""
        bodies = [self._call(*each, schema_of(*each)) for each in tools.items()]
        calls = self._calls(bodies, is_single)
        return self._text(self._reasoning(is_reasoning), marker, calls)

    def either(
        self, tools: Mapping[int, Tool], answer: str | None, is_reasoning: bool, is_single: bool
    ) -> str:
        bodies = [
            self._call(place, tool, schema_of(place, tool) if tool.is_strict else None)
            for place, tool in tools.items()
        ]
        calls = self._calls(bodies, is_single)
        if self._output.tools == HARMONY:
            final = self._rules.mark(f"{harmony.CHANNEL}final{harmony.MESSAGE}")
            text = answer or self._rules.text_without(harmony.CHANNEL, *harmony.ENDS)
            before = f"({self._thought('analysis')} | {self._thought('commentary')})*"
            return self._text(before, f"({calls} | {final} {self._rules.rule(text)})")
        reasoning = self._reasoning(is_reasoning)
        if answer is not None:
            marker = self._rules.mark(self._marker) if self._marker else ""
            return self._text(reasoning, f"({marker} {calls} | {self._rules.rule(answer)})")
        if self._marker:
            begin = self._rules.text_until(self._marker)
            text = self._rules.text_without(self._marker)
        else:
            # What begins like an object is a call, and so is one behind a token of its own.
            begin = f"({self._rules.mark(_PYTHON_TAG)})?"
            text = self._rules.text_without(_PYTHON_TAG, begin=r"\s*\{")
        if not reasoning and (tags := REASONING_PARSERS.get(self._output.reasoning)):
            # Where these are tokens, text cannot have them.
            end = self._rules.text_until(tags.end)
            reasoning = f'({self._rules.mark(tags.begin)} {end} "\\n"*)?'
        return self._text(reasoning, f"({begin} {calls} | {text})")

    def answer(self, answer: str) -> str:
        start = [self._reasoning(is_reasoning=True), self._rules.rule(answer)]
        if self._output.reasoning == HARMONY_REASONING:
            start.insert(1, self._rules.mark(f"{harmony.CHANNEL}final{harmony.MESSAGE}"))
        return self._text(*start)

    def _text(self, *start: str) -> str:
        return "\n".join([f"start: {' '.join(filter(None, start))}", *self._rules.lines(), ""])

    def _reasoning(self, is_reasoning: bool) -> str:
        if self._output.tools == HARMONY or self._output.reasoning == HARMONY_REASONING:
            return f"({self._thought('analysis')})?"
        tags = REASONING_PARSERS.get(self._output.reasoning)
        if not is_reasoning or tags is None:
            return ""
        return f'{self._rules.text_until(tags.end)} "\\n"*'

    def _thought(self, channel: str) -> str:
        """Return a message of gpt-oss that is not the last one."""
        begin = self._rules.mark(f"{harmony.CHANNEL}{channel}{harmony.MESSAGE}")
        text = self._rules.text_until(harmony.ENDS[0])
        return f'{begin} {text} {self._rules.mark(harmony.START)} "assistant"'

    def _calls(self, bodies: Sequence[str], is_single: bool) -> str:
        """Return calls, the first of which lacks the marker that calls begin with."""
        call = self._rules.rule(" | ".join(map(self._rules.rule, bodies)))
        again, after = self._rules.mark(self._marker) if self._marker else "", ""
        match self._output.tools:
            case "deepseek_v3" | "deepseek_v31":
                again = '"\\n"' if self._output.tools == "deepseek_v3" else ""
                after = self._rules.mark(deepseek.CALLS_END)
            case "llama3_json":
                again = '"; "'
            case "openai":
                # A message that calls is the last one.
                is_single = True
            case "mistral":
                pass
            case _:
                again = f'"\\n" {again}'
        more = "" if is_single else f"({again} {call})*"
        return " ".join(filter(None, (call, more, after)))

    def _call(self, place: int, tool: Tool, schema: dict[str, Any] | None) -> str:
        """Return a call behind its marker; without a schema, of any arguments."""
        try:
            return self._written(tool, schema)
        except NotServedError as error:
            reason = f"must be a schema that calls can be held to, got {error}"
        except RecursionError:
            reason = _TOO_DEEP
        raise InvalidRequestError(field_of(place), reason) from None

    def _written(self, tool: Tool, schema: dict[str, Any] | None) -> str:
        mark = self._rules.mark
        match self._output.tools:
            case "llama3_json":
                return self._named_object(tool.name, "parameters", schema)
            case "mistral":
                return f"{quoted(tool.name)} {mark('[ARGS]')} {self._arguments(schema)}"
            case "deepseek_v3":
                begin = mark(f"{deepseek.CALL_BEGIN}function{deepseek.SEPARATOR}")
                name, end = quoted(f"{tool.name}\n```json\n"), mark(f"\n```{deepseek.CALL_END}")
                return f"{begin} {name} {self._arguments(schema)} {end}"
            case "deepseek_v31":
                begin, end = mark(deepseek.CALL_BEGIN), mark(deepseek.CALL_END)
                separator = mark(deepseek.SEPARATOR)
                return f"{begin} {quoted(tool.name)} {separator} {self._arguments(schema)} {end}"
            case "glm45":
                members = self._tagged(schema, _GLM_TAGS)
                name = quoted(f"{tool.name}\n")
                return f"{name} {members} {mark('</tool_call>')}"
            case "qwen3_coder":
                members = self._tagged(schema, _QWEN_TAGS)
                begin, end = mark("\n<function="), mark("</function>\n</tool_call>")
                return f'{begin} {quoted(tool.name)} ">\\n" {members} {end}'
            case "openai":
                name = quoted(f"commentary to=functions.{tool.name} ")
                message = mark(f"<|constrain|>json{harmony.MESSAGE}")
                return f"{mark(harmony.CHANNEL)} {name} {message} {self._arguments(schema)}"
            case _:
                value = self._named_object(tool.name, "arguments", schema)
                return " ".join((quoted("\n"), value, mark("\n</tool_call>")))

    def _arguments(self, schema: dict[str, Any] | None) -> str:
        return self._rules.json(_ANY_OBJECT if schema is None else schema)

    def _named_object(self, name: str, arguments: str, schema: dict[str, Any] | None) -> str:
        """Return JSON of a call: the schema of its arguments stands within another one."""
        value = _ANY_OBJECT if schema is None else moved(schema)
        return self._rules.json(
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments: value},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
        )

    def _tagged(self, schema: dict[str, Any] | None, tags: Tags) -> str:
        if schema is None:
            return any_arguments(self._rules, tags)
        return tagged_arguments(self._rules, schema, tags)
