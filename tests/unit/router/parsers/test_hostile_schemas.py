"""Schemas of strict tools that no tool needs: each is a grammar or a refusal, never a fault."""

import contextlib
import json
from typing import Any

import pytest

from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher
from router.chat.parsers.events import ArgumentsDelta
from router.chat.parsers.forced import call_or_answer, forced_call
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from router.chat.parsers.schema_values import ToolSchema
from router.chat.parsers.shapes import Shape
from tests.output_formats import json_calls
from tests.unit.router.parsers.schema_walks import Walks


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


# A call of `f`, with an argument that is a name and a value.
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
    with pytest.raises(
        InvalidRequestError, match=r"^tools\[0\]\.parameters: .*surrogate"
    ) as caught:
        call_or_answer(OutputFormat(output), [tool], None)
    assert str(caught.value).encode()


@pytest.mark.parametrize("output", TOOL_CALL_PARSERS)
def test_half_of_a_surrogate_pair_in_a_call_is_its_escape(output: str) -> None:
    """What the model writes goes out as it stands, as a name as well as a value."""
    arguments = r'{"\ud800": "\udc00"}'
    text = TAGGED.get(output) or json_calls("f")[output] % arguments
    parser = OutputFormat(output).parser("id", 0, [Tool("f")])
    assert parser is not None
    events = parser.feed(text) + parser.finish()
    written = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
    assert json.loads(written.encode()) in ({"\ud800": "\udc00"}, {r"\ud800": "\udc00"})


def test_half_of_a_surrogate_pair_is_text_as_it_stands() -> None:
    value = ToolSchema(Tool(name="f", parameters="{}")).value("a", r"['\ud800']")
    assert json.loads(value.encode()) == r"['\ud800']"


MANY = {
    "patterns for each of many": {
        "allOf": [
            {"anyOf": [{"pattern": f"^x{i}$"} for i in range(255)]},
            *({"pattern": f"a{i}"} for i in range(2000)),
        ]
    },
    "members for each of many": {
        "allOf": [
            {"anyOf": [{"required": [f"p{j}" for j in range(20)]} for _ in range(200)]},
            *({"required": [f"p{i}"]} for i in range(1500)),
        ]
    },
    "long lists side by side": {
        "allOf": [{"anyOf": [{"enum": [f"x{i}" for i in range(400)]} for _ in range(16)]}] * 2
    },
    "long lists to be told apart": {
        "oneOf": [{"enum": [f"{j}x{i}" for i in range(100)]} for j in range(60)]
    },
}


@pytest.mark.parametrize("name", MANY)
def test_what_multiplies_is_refused_before_it_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in items that are copied or compared, of which a short schema may ask for 10^8."""
    copied: list[int] = []
    merged = Shape.merged

    def spy(one: Shape, other: Shape) -> Shape:
        copied.append(one.num_items + other.num_items)
        return merged(one, other)

    monkeypatch.setattr(Shape, "merged", spy)
    tool = Tool(name="f", parameters=json.dumps(of(MANY[name])), is_strict=True)
    with pytest.raises(
        InvalidRequestError, match=r"^tools\[0\]\.parameters: .* too many"
    ) as caught:
        call_or_answer(OutputFormat("glm45"), [tool], None)
    assert "values and members" in str(caught.value)
    assert sum(copied) <= 2**17


@pytest.mark.parametrize("output", TOOL_CALL_PARSERS)
def test_unique_items_that_need_not_be_are_taken(output: str) -> None:
    schema = of({"type": "array", "items": {"type": "string"}, "uniqueItems": False})
    tool = Tool(name="f", parameters=json.dumps(schema), is_strict=True)
    grammar = forced_call(OutputFormat(output), [tool])
    # Raises where llguidance takes no such schema.
    matcher = open_matcher(
        Walks(has_marks=False).vocabulary, StructuredOutputsParams(grammar=grammar)
    )
    assert not matcher.is_stopped()
