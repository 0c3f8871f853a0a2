"""Schemas of strict tools that no tool needs: each is a grammar or a refusal, never a fault."""

import contextlib
import json
from typing import Any

import pytest

from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from router.chat.parsers.events import ArgumentsDelta
from router.chat.parsers.forced import call_or_answer
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from router.chat.parsers.schema_values import ToolSchema
from tests.output_formats import BEGIN, END, V3, V31


def of(member: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": member}, "required": ["a"], **fields}


SCHEMAS = {
    "an index of 5000 digits": of({"$ref": "#/anyOf/" + "9" * 5000}, anyOf=[{}]),
    "an index that is no ASCII": of({"$ref": "#/anyOf/²"}, anyOf=[{}, {}, {}]),
    "a reference that is no URI": of({"$ref": "http://[x#/a"}),
    "an id that is no URI": of({"$ref": "x#/a"}, **{"$id": "http://[x"}),
    "required that is no list": of(
        {"oneOf": [{"required": 5}], "discriminator": {"propertyName": "b"}}
    ),
    "a length without an end": of({"type": "string", "minLength": float("inf")}),
    "a length that is no number": of({"type": "string", "minLength": float("nan")}),
    "long lists that share nothing": of(
        {"allOf": [{"enum": [f"{name}{i}" for i in range(6000)]} for name in "ab"]}
    ),
}


# Calls of `f` with any arguments, and with one that is a name and a value.
CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": %s}</tool_call>',
    "llama3_json": '{"name": "f", "parameters": %s}',
    "mistral": "[TOOL_CALLS]f[ARGS]%s",
    "deepseek_v3": BEGIN + V3.replace("%s", "f", 1) + END,
    "deepseek_v31": BEGIN + V31.replace("%s", "f", 1) + END,
    "openai": "<|channel|>commentary to=functions.f<|message|>%s<|call|>",
}
TAGGED = {
    "glm45": r'<tool_call>f<arg_key>\ud800</arg_key><arg_value>"\udc00"</arg_value></tool_call>',
    "qwen3_coder": r'<tool_call><function=f><parameter=\ud800>"\udc00"</parameter></function>'
    "</tool_call>",
}


@pytest.mark.parametrize("output", TOOL_CALL_PARSERS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_a_grammar_or_refused(name: str, output: str) -> None:
    tool = Tool(name="f", parameters=json.dumps(SCHEMAS[name]), is_strict=True)
    with contextlib.suppress(InvalidRequestError):
        assert call_or_answer(OutputFormat(output), [tool], None)


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_argument_is_read_by_it(name: str) -> None:
    tool = Tool(name="f", parameters=json.dumps(SCHEMAS[name]))
    assert json.loads(ToolSchema(tool).value("a", "5")) in (5, "5")


@pytest.mark.parametrize("output", TOOL_CALL_PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        r'{"properties": {"\ud800": {"type": "string"}}}',
        r'{"properties": {"a": {"enum": ["\udfff"]}}}',
        r'{"properties": {"a": {"type": "string", "pattern": "\ud83d\ud83d"}}}',
        r'{"properties": {}, "required": ["\ud800"], "additionalProperties": true}',
    ],
)
def test_half_of_a_surrogate_pair_in_a_schema_is_refused_by_name(text: str, output: str) -> None:
    tool = Tool(name="f", parameters=text, is_strict=True)
    with pytest.raises(InvalidRequestError, match=r"^tools\.f\.parameters: .*surrogate") as caught:
        call_or_answer(OutputFormat(output), [tool], None)
    assert str(caught.value).encode()


@pytest.mark.parametrize("output", TOOL_CALL_PARSERS)
def test_half_of_a_surrogate_pair_in_a_call_is_its_escape(output: str) -> None:
    """What the model writes goes out as it stands, as a name as well as a value."""
    arguments = r'{"\ud800": "\udc00"}'
    text = CALLS[output] % arguments if output in CALLS else TAGGED[output]
    parser = OutputFormat(output).parser("id", 0, [Tool("f")])
    assert parser is not None
    events = parser.feed(text) + parser.finish()
    written = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
    assert json.loads(written.encode()) in ({"\ud800": "\udc00"}, {r"\ud800": "\udc00"})


def test_half_of_a_surrogate_pair_is_text_as_it_stands() -> None:
    value = ToolSchema(Tool(name="f", parameters="{}")).value("a", r"['\ud800']")
    assert json.loads(value.encode()) == r"['\ud800']"
