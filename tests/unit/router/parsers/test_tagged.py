"""Values of tagged arguments are those of the tool's schema, which is read once for each tool."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from quire.contract.chat import Tool
from router.chat.parsers import tagged
from router.chat.parsers.events import ArgumentsDelta, CallIds
from router.chat.parsers.schema_values import ToolSchema

SCHEMA = {"properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}}
CALL = (
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>b</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
)
STRING, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
BOOLEAN, OBJECT, ARRAY = {"type": "boolean"}, {"type": "object"}, {"type": "array"}
MAYBE = {"anyOf": [STRING, NULL]}
LOOP = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (json.dumps(SCHEMA), {"a": "1", "b": 1}),
        ("", {"a": 1, "b": 1}),
        ("{", {"a": 1, "b": 1}),
        ("[" * 10**5, {"a": 1, "b": 1}),
        ("[]", {"a": 1, "b": 1}),
        ('{"properties": [1]}', {"a": 1, "b": 1}),
        ('{"properties": {"a": 5, "b": {"type": 5}}}', {"a": 1, "b": 1}),
    ],
)
def test_a_schema_is_read_once(monkeypatch, parameters: str, expected: dict[str, Any]) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        tagged, "ToolSchema", lambda tool: read.append(tool.name) or ToolSchema(tool)
    )
    parser = tagged.GlmCalls(CallIds("id", 0), (Tool("f", parameters=parameters),))
    for _ in range(2):
        events = parser.feed(CALL)
        arguments = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
        assert json.loads(arguments) == expected
    parser.finish()
    assert read == ["f"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        # What the type says, however it is said.
        ({"type": ["string", "null"]}, "123", "123"),
        ({"type": ["null", "string"]}, "null", None),
        (MAYBE, "123", "123"),
        (MAYBE, "true", "true"),
        (MAYBE, '{"a": 1}', '{"a": 1}'),
        (MAYBE, "null", None),
        (MAYBE, "None", None),
        (MAYBE, " 12 ", " 12 "),
        ({"oneOf": [STRING, NULL]}, "1e5", "1e5"),
        ({"oneOf": [INTEGER, NULL]}, "5", 5),
        ({"allOf": [{"type": ["string", "integer"]}, STRING]}, "5", "5"),
        ({"allOf": [{"$ref": "#/$defs/text"}], "description": "x"}, "5", "5"),
        ({"$ref": "#/$defs/text"}, "5", "5"),
        ({"$ref": "#/$defs/a~1b%20c"}, "5", "5"),
        ({"$ref": "#/definitions/old"}, "5", "5"),
        ({"$ref": "#anchored"}, "5", "5"),
        ({"$ref": "text.json"}, "5", "5"),
        ({"$ref": "https://a.example/text.json"}, "5", "5"),
        ({"$ref": "#/$defs/list/anyOf/0"}, "5", "5"),
        ({"type": "string", "nullable": True}, "7", "7"),
        ({"type": "string", "nullable": True}, "null", None),
        # Values decide like types.
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["auto", None]}, "None", None),
        ({"enum": ["low", "high"]}, " low\n", "low"),
        ({"enum": ["low", "high"]}, '"low"', "low"),
        ({"const": "3"}, "3", "3"),
        ({"const": 3}, "3", 3),
        ({"enum": [True, "1"]}, "1", "1"),
        ({"type": "string", "enum": ["true"]}, "true", "true"),
        # Python's spellings, where the schema asks for such a value.
        (BOOLEAN, "True", True),
        (BOOLEAN, " False\n", False),
        ({"anyOf": [BOOLEAN, NULL]}, "None", None),
        (OBJECT, "{'a': True, 'b': None, 'c': (1, 2)}", {"a": True, "b": None, "c": [1, 2]}),
        (ARRAY, "['x', False]", ["x", False]),
        (STRING, "True", "True"),
        ({}, "True", "True"),
        (True, "True", "True"),
        (OBJECT, "{1: {2}}", "{1: {2}}"),
        (ARRAY, "[" * 5000, "[" * 5000),
        (ARRAY, "[1e999]", "[1e999]"),
        # Where several are allowed, the text is JSON if it can be.
        ({"anyOf": [STRING, INTEGER]}, "5", 5),
        ({"type": ["number", "string"]}, "1.50", 1.5),
        ({"type": ["integer", "string"]}, "1.5", "1.5"),
        (INTEGER, "1.0", 1.0),
        ({}, "[1]", [1]),
        ({}, '"a"', "a"),
        ({"type": ["string", "integer"]}, '"a"', "a"),
        (MAYBE, '"5"', "5"),
        # Nothing that is allowed: what it is.
        (INTEGER, "abc", "abc"),
        (INTEGER, "NaN", "NaN"),
        (False, "5", 5),
        # What cannot be read, or not to its end.
        ({"$ref": "#/nowhere"}, "5", 5),
        ({"$ref": "#/$defs/list/anyOf/x"}, "5", 5),
        ({"$ref": 5}, "5", 5),
        ({"$ref": "#"}, "5", 5),
        ({"$ref": "#/$defs/loop"}, "5", 5),
        ({"type": "text"}, "5", 5),
    ],
)
def test_the_schema_decides(schema: Any, text: str, value: Any) -> None:
    root = {
        "$id": "https://a.example/root.json",
        "type": "object",
        "properties": {"x": schema},
        "$defs": {
            "text": {"$id": "https://a.example/text.json", **STRING},
            "a/b c": STRING,
            "any": {"$anchor": "anchored", **STRING},
            "list": {"anyOf": [STRING, NULL]},
            "loop": LOOP,
        },
        "definitions": {"old": STRING},
    }
    written = ToolSchema(Tool("f", parameters=json.dumps(root))).value("x", text)
    found = json.loads(written)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/of", "$defs": {"of": {"properties": {"x": STRING}}}},
        {"allOf": [{"properties": {"y": INTEGER}}, {"properties": {"x": STRING}}]},
        {"anyOf": [{"properties": {"x": STRING}}, {"properties": {"x": NULL}}]},
        {"properties": {"y": INTEGER}, "additionalProperties": STRING},
    ],
)
def test_an_argument_is_found_wherever_the_schema_has_it(parameters) -> None:
    assert ToolSchema(Tool("f", parameters=json.dumps(parameters))).value("x", "5") == '"5"'


class Nested(BaseModel):
    name: str | None = None


class Arguments(BaseModel):
    title: str | None = None
    count: int | None = None
    ratio: float = 1
    nested: Nested | None = None
    names: list[str] = []
    done: bool = False


def test_schemas_of_pydantic() -> None:
    schema = ToolSchema(Tool("f", parameters=json.dumps(Arguments.model_json_schema())))
    written = {
        "title": "2026",
        "count": "3",
        "ratio": "2",
        "nested": "{'name': None}",
        "names": '["1"]',
        "done": "True",
    }
    text = ", ".join(f'"{name}": {schema.value(name, each)}' for name, each in written.items())
    found = Arguments.model_validate_json("{" + text + "}", strict=True)
    assert found == Arguments(
        title="2026", count=3, ratio=2, nested=Nested(), names=["1"], done=True
    )
    assert not schema.is_text("title")


@pytest.mark.parametrize(
    ("schema", "is_text"),
    [
        *(
            (STRING, True),
            ({"$ref": "#/$defs/t"}, True),
            ({"type": "string", "minLength": 2}, True),
        ),
        *((MAYBE, False), ({}, False), (False, False), ({"enum": ["a"]}, False)),
    ],
)
def test_what_goes_out_as_it_comes(schema, is_text) -> None:
    root = {"properties": {"x": schema}, "$defs": {"t": STRING}}
    assert ToolSchema(Tool("f", parameters=json.dumps(root))).is_text("x") is is_text
