"""Arguments drawn under the grammar of a tool are of its schema, in every format of calls."""

import json
from datetime import date
from enum import Enum
from random import Random
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, Field, create_model

from quire.contract.chat import Tool
from router.chat.parsers.forced import forced_call
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from tests.unit.router.parsers.schema_walks import Walks, read

SEED = 40
NUM_MODELS = 8
# Those of which jsonschema knows what the standard says, without further packages.
FORMATS = jsonschema.FormatChecker(("date", "uuid", "ipv4", "email"))


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Number(Enum):
    ONE = 1
    TWO = 2


class Point(BaseModel):
    x: int = Field(ge=0, le=99)
    y: float | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(min_length=1, max_length=8)


class Node(BaseModel):
    label: Literal["a", "b"]
    children: list["Node"] = Field(max_length=2)


class Chain(BaseModel):
    colour: Colour
    next: "Chain | None"


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
KINDS: list[Any] = [
    *(str, int, bool, float, Colour, Number, Literal["x", "y z"], Literal[1, "one", None]),
    *(str | None, int | None, Colour | None, str | int, list[str], list[Point], Point, Pet, Node),
    *(Chain, Pet | None, dict[str, int], dict[str, Point], list[Pet], tuple[int, str], Any, date),
    *(UUID, Annotated[str, Field(pattern="^[a-c]{2}-[0-9]+$")], Point | list[int] | None),
    *(Annotated[str, Field(min_length=2, max_length=5)], list[list[int]], str | list[str]),
    *(
        dict[Colour, int],
        dict[Literal["a b", "(c"], bool],
        dict[Annotated[str, Field(min_length=2)], int],
    ),
    *(Annotated[str, Field(pattern="^ab|yz$", max_length=9)] | None, date | None, bytes),
]


def drawn_model(draw: Random) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for place in range(draw.randint(1, 5)):
        kind = draw.choice(KINDS)
        is_optional = draw.random() < 0.3
        fields[f"field_{place}"] = (kind | None, None) if is_optional and kind is not Any else kind
    return create_model(
        "Drawn", **{k: v if isinstance(v, tuple) else (v, ...) for k, v in fields.items()}
    )


@pytest.fixture(scope="module", params=[False, True], ids=["letters", "tokens"])
def walks(request) -> Walks:
    return Walks(request.param)


STRING = {"type": "string", "maxLength": 6}
OBJECT = {"type": "object", "additionalProperties": False}
TREE = {**OBJECT, "properties": {"k": {"enum": [1, 2]}, "c": {"anyOf": [{"$ref": "#"}, STRING]}}}
ONE = {"properties": {"a": {"const": "one"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TWO = {"properties": {"a": {"const": "two"}, "c": STRING}, "required": ["a"]}
# Of every kind by which a schema refers to itself, joins others, or says what is no schema.
SCHEMAS: dict[str, Any] = {
    "$defs": {
        **OBJECT,
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}, "c": STRING},
        "required": ["a", "c"],
        "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/B"}}, "B": {"type": "null"}},
    },
    "definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$ref": "#/definitions/A B"}},
        "required": ["a"],
        "definitions": {"A B": {"type": "integer", "minimum": 3}},
    },
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "required": ["a"],
        "definitions": {"A": {"enum": ["x"]}},
    },
    "root": {**TREE, "required": ["k", "c"]},
    "root is a reference": {"$ref": "#/$defs/A", "$defs": {"A": {**ONE, **OBJECT}}},
    "by its name": {
        "$id": "https://example.org/a.json",
        "properties": {"a": {"$ref": "https://example.org/a.json#/$defs/A"}},
        "required": ["a"],
        "$defs": {"A": {"type": "array", "items": {"$ref": "a.json#/$defs/B"}}, "B": STRING},
    },
    "names within": {
        "properties": {"a": {"$ref": "#here"}, "b": {"$ref": "part.json"}},
        "required": ["a", "b"],
        "$defs": {"A": {"$anchor": "here", "type": "boolean"}, "B": {"$id": "part.json", **STRING}},
    },
    "a path": {
        "properties": {"a": {"type": ["integer", "null"]}, "b/c": {"$ref": "#/properties/a"}},
        "required": ["b/c"],
    },
    "default is a name": {
        "properties": {"default": {"$ref": "#/$defs/const"}, "format": {"format": "byte"}},
        "required": ["default", "format"],
        "$defs": {"const": {"type": "array", "items": {"format": "path", "type": "string"}}},
    },
    "allOf": {
        "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": STRING}, "required": ["b"]}],
        "$defs": {"A": {"properties": {"a": {"allOf": [STRING, {"minLength": 2}]}}}},
    },
    "anyOf": {"anyOf": [{**ONE, **OBJECT}, {**TWO, **OBJECT}]},
    "oneOf": {"oneOf": [{**ONE, **OBJECT}, {**TWO, **OBJECT}]},
    "const": {
        "properties": {"a": {"const": "x < y"}, "b": {"const": [1, "</s>"]}, "c": {"const": None}},
        "required": ["a", "b", "c"],
    },
    "formats": {
        **OBJECT,
        "properties": {
            **{
                each: {"type": "string", "format": each} for each in ("byte", "date", "x-y", "uuid")
            },
            **{each: {"type": ["string", "null"], "format": each} for each in ("time", "ipv4")},
            **{each: {"type": "integer", "format": each} for each in ("int32", "int64")},
            "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
        },
        "required": ["byte", "date", "uuid", "time", "ipv4", "int32", "email"],
    },
    "union": {
        "properties": {
            "a": {"type": ["string", "integer"], "maxLength": 4},
            "b": {"anyOf": [STRING, {"type": "array", "items": STRING}, {"$ref": "#/$defs/N"}]},
            "c": {"enum": ["null", 3, None, "é"]},
        },
        "required": ["a", "b", "c"],
        "$defs": {"N": {"oneOf": [{"type": "null"}, {"type": "boolean"}]}},
    },
}


def check(walks: Walks, name: str, schema: dict[str, Any], draw: Random) -> Any:
    """Return arguments that were drawn, once they are found to be right; None for none."""
    output, tools = OutputFormat(name), (Tool("make", parameters=json.dumps(schema)),)
    text = walks.draw(forced_call(output, tools, "make", walks.added), draw)
    if text is None:
        return None
    where = f"SEED={SEED} {name} {json.dumps(schema)}\n{text}"
    names, arguments, content = read(output, tools, text)
    assert (names, content) == (["make"], ""), where
    value = json.loads(arguments[0])
    try:
        jsonschema.validate(value, schema, format_checker=FORMATS)
    except ValueError as error:
        raise AssertionError(where) from error
    return value


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
def test_calls_of_drawn_models_are_of_the_model(walks: Walks, name: str) -> None:
    draw, num_read = Random(f"{SEED} {name}"), 0
    for _ in range(NUM_MODELS):
        model = drawn_model(draw)
        value = check(walks, name, model.model_json_schema(), draw)
        if value is not None:
            model.model_validate(value)
            num_read += 1
    assert num_read > NUM_MODELS // 2


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_means_what_it_does_at_its_root(walks: Walks, kind: str) -> None:
    for name in TOOL_CALL_PARSERS:
        draw = Random(f"{SEED} {name} {kind}")
        schema = SCHEMAS[kind]
        found = [value for _ in range(2) if (value := check(walks, name, schema, draw)) is not None]
        assert found, f"SEED={SEED} {name}"
        assert all(isinstance(each, dict) for each in found)
