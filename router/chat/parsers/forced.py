"""Grammars of outputs that have a format around them, in the Lark dialect of llguidance."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from quire.grammar import with_json_options
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.formats import (
    HARMONY,
    HARMONY_REASONING,
    REASONING_PARSERS,
    OutputFormat,
)

_TEXT = "/(?s:.*)/"
_ANY_OBJECT = {"type": "object"}


def forced_call(
    output: OutputFormat,
    tools: Sequence[Tool],
    name: str = "",
    added_tokens: Mapping[str, int] | None = None,
    is_reasoning: bool = False,
) -> str:
    """Return the grammar of an output that calls tools, and says nothing else.

    Args:
        output: the model's format; one without tool calls gets those of Hermes.
        tools: that may be called; their parameters are JSON objects.
        name: the one to be called, once; "" lets the model choose, and call several.
        added_tokens: ids of the tokenizer's added tokens, special or not, by text: a grammar
            matches these by id alone.
        is_reasoning: the output begins within reasoning, which may end first.

    Raises:
        InvalidRequestError: parameters of a tool are no schema of an object.
    """
    return _Grammar(output, added_tokens or {}).text(
        [tool for tool in tools if name in ("", tool.name)],
        is_single=bool(name),
        is_reasoning=is_reasoning,
    )


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


class _Grammar:
    def __init__(self, output: OutputFormat, added_tokens: Mapping[str, int]) -> None:
        self._output = output
        self._added_tokens = added_tokens
        self._num_texts = 0
        self._rules: list[str] = []

    def text(self, tools: Sequence[Tool], is_single: bool, is_reasoning: bool) -> str:
        mark = self._mark
        before, between, after = "", "", ""
        match self._output.tools:
            case "deepseek_v3" | "deepseek_v31":
                before, after = mark(deepseek.CALLS_BEGIN), mark(deepseek.CALLS_END)
                between = '"\\n"' if self._output.tools == "deepseek_v3" else ""
            case "llama3_json":
                between = '"; "'
            case "openai":
                # A message that calls is the last one.
                is_single = True
            case "mistral":
                pass
            case _:
                between = '"\\n"'
        more = "" if is_single else f"({between} call)*"
        start = [self._reasoning(is_reasoning), before, "call", more, after]
        for number, tool in enumerate(tools):
            self._rules.append(f"call_{number}: {self._call(tool)}")
        choices = " | ".join(f"call_{number}" for number in range(len(tools)))
        head = [f"start: {' '.join(filter(None, start))}", f"call: {choices}"]
        return "\n".join([*head, *self._rules, ""])

    def answer(self, answer: str) -> str:
        start = [self._reasoning(is_reasoning=True), "answer"]
        if self._output.reasoning == HARMONY_REASONING:
            channel, message = self._mark(harmony.CHANNEL), self._mark(harmony.MESSAGE)
            start.insert(1, f'{channel} "final" {message}')
        return "\n".join([f"start: {' '.join(start)}", f"answer: {answer}", *self._rules, ""])

    def _reasoning(self, is_reasoning: bool) -> str:
        if self._output.tools == HARMONY or self._output.reasoning == HARMONY_REASONING:
            mark = self._mark
            first = f'{mark(harmony.CHANNEL)} "analysis" {mark(harmony.MESSAGE)}'
            text = self._text_until(harmony.ENDS[0])
            return f'({first} {text} {mark(harmony.START)} "assistant")?'
        tags = REASONING_PARSERS.get(self._output.reasoning)
        return f'{self._text_until(tags.end)} "\\n"*' if is_reasoning and tags is not None else ""

    def _call(self, tool: Tool) -> str:
        mark = self._mark
        schema = _schema(tool)
        arguments = _json(schema)
        match self._output.tools:
            case "llama3_json":
                return _json(_object(tool.name, "parameters", schema))
            case "mistral":
                name = _quoted(tool.name)
                return f"{mark('[TOOL_CALLS]')} {name} {mark('[ARGS]')} {arguments}"
            case "deepseek_v3":
                begin, separator = mark(deepseek.CALL_BEGIN), mark(deepseek.SEPARATOR)
                name, end = _quoted(f"{tool.name}\n```json\n"), mark(deepseek.CALL_END)
                return f'{begin} "function" {separator} {name} {arguments} "\\n```" {end}'
            case "deepseek_v31":
                begin, separator = mark(deepseek.CALL_BEGIN), mark(deepseek.SEPARATOR)
                name, end = _quoted(tool.name), mark(deepseek.CALL_END)
                return f"{begin} {name} {separator} {arguments} {end}"
            case "glm45":
                body = self._members(schema, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")
                name, end = _quoted(f"{tool.name}\n"), mark("</tool_call>")
                return f"{mark('<tool_call>')} {name} {body} {end}"
            case "qwen3_coder":
                body = self._members(schema, "<parameter=", ">\n", "\n</parameter>")
                name, end = _quoted(f"\n<function={tool.name}>\n"), mark("</tool_call>")
                return f'{mark("<tool_call>")} {name} {body} "</function>\\n" {end}'
            case "openai":
                name = _quoted(f"commentary to=functions.{tool.name} ")
                constrain, message = mark("<|constrain|>"), mark(harmony.MESSAGE)
                return f'{mark(harmony.CHANNEL)} {name} {constrain} "json" {message} {arguments}'
            case _:
                value = _json(_object(tool.name, "arguments", schema))
                return f'{mark("<tool_call>")} "\\n" {value} "\\n" {mark("</tool_call>")}'

    def _members(self, schema: Mapping[str, Any], before: str, after: str, end: str) -> str:
        """Return arguments in the order of the schema, with these tags around name and value."""
        required = schema.get("required")
        required = required if isinstance(required, list) else ()
        members = []
        for name, value in schema.get("properties", {}).items():
            is_text = isinstance(value, Mapping) and value.get("type") == "string"
            if is_text and isinstance(value.get("enum"), list):
                choices = " | ".join(_quoted(str(each)) for each in value["enum"])
                read = f"({choices}) {self._mark(end)}"
            elif is_text:
                read = self._text_until(end)
            else:
                read = f"{_json(value)} {self._mark(end)}"
            member = f'{_quoted(f"{before}{name}{after}")} {read} "\\n"'
            members.append(member if name in required else f"({member})?")
        return " ".join(members)

    def _text_until(self, end: str) -> str:
        """Return any text and what ends it."""
        if end in self._added_tokens:
            return f"{_TEXT} {self._mark(end)}"
        name = f"text_{self._num_texts}"
        self._num_texts += 1
        self._rules.append(f"{name}[suffix={_quoted(end)}]: {_TEXT}")
        return name

    def _mark(self, text: str) -> str:
        if text in self._added_tokens:
            return f"<[{self._added_tokens[text]}]>"
        return _quoted(text)


def _schema(tool: Tool) -> dict[str, Any]:
    field = f"tools.{tool.name[:64]}.parameters"
    try:
        schema = json.loads(tool.parameters) if tool.parameters else _ANY_OBJECT
    except (ValueError, RecursionError):
        raise InvalidRequestError(field, "must be a JSON object, got other text") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise InvalidRequestError(field, "must be the JSON schema of an object, got another value")
    return schema


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Any) -> str:
    return f"%json {json.dumps(with_json_options(schema))}"


def _object(name: str, arguments: str, schema: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, arguments: schema},
        "required": ["name", arguments],
        "additionalProperties": False,
    }
