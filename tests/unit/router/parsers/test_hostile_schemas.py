"""Schemas of strict tools that no tool needs: each is a grammar or a refusal, never a fault."""

import contextlib
import json
from typing import Any

import pytest

from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from router.chat.parsers.forced import call_or_answer
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from router.chat.parsers.schema_values import ToolSchema


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


def test_half_of_a_surrogate_pair_is_text_as_it_stands() -> None:
    value = ToolSchema(Tool(name="f", parameters="{}")).value("a", r"['\ud800']")
    assert json.loads(value.encode()) == r"['\ud800']"
