"""Which grammar a JSON body asks for, in each API's words, and which bodies are refused."""

import json
from typing import Any

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from router.http.fields import Fields
from router.http.structured_outputs import read_structured_outputs

SCHEMA = {"type": "integer"}
JSON = StructuredOutputsParams(json=SCHEMA)
JSON_OBJECT = StructuredOutputsParams(json={"type": "object", "maxProperties": 1})
CHAT, RESPONSES = "response_format", "text.format"
BODIES: list[tuple[str, dict[str, Any], StructuredOutputsParams | None]] = [
    (CHAT, {}, None),
    (CHAT, {"response_format": None, "guided_json": None, "structured_outputs": None}, None),
    (CHAT, {"response_format": {"type": "text"}}, None),
    (CHAT, {"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
    (
        CHAT,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
            }
        },
        JSON,
    ),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
        JSON,
    ),
    (RESPONSES, {"text": {"verbosity": "low"}}, None),
    (CHAT, {"response_format": None}, None),
    (RESPONSES, {"text": {"format": None}}, None),
    (CHAT, {"guided_json": SCHEMA}, JSON),
    (CHAT, {"guided_json": '{"type": "integer"}'}, JSON),
    (CHAT, {"guided_json_object": False}, None),
    (CHAT, {"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
    (CHAT, {"guided_choice": ["a", "b"]}, StructuredOutputsParams(choice=("a", "b"))),
    (
        CHAT,
        {"structured_outputs": {"grammar": 'start: "a"', "regex": None, "disable_fallback": False}},
        StructuredOutputsParams(grammar='start: "a"'),
    ),
]
SPELLINGS: list[tuple[dict[str, Any], StructuredOutputsParams | None]] = [
    ({"response_format": {"type": "json_object", "schema": {"maxProperties": 1}}}, JSON_OBJECT),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, JSON),
    ({"json_schema": SCHEMA}, JSON),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"ebnf": 'root ::= "a"'}, StructuredOutputsParams(grammar='root ::= "a"')),
    ({"grammar": 'root ::= "a"'}, StructuredOutputsParams(grammar='root ::= "a"')),
    ({"grammar": "", "regex": "", "json_schema": None, "grammar_lazy": False}, None),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": {"type": "xml"}}, r"^response_format.type: must be 'text', .*'xml'"),
    *(
        (CHAT, {"response_format": {"type": kind, name: "a"}}, f"^response_format.{name}: must be")
        for kind in ("text", "json_object")
        for name in ("regex", "ebnf", "grammar", "pattern", "value", "structures", "json_schema")
    ),
    (CHAT, {"response_format": {"type": "json_schema", "schema": {}, "regex": "a"}}, "regex: must"),
    (CHAT, {"response_format": {"schema": SCHEMA}}, "^response_format.type: must be .*, got none"),
    (RESPONSES, {"text": {"format": {"type": "json_object", "regex": "a"}}}, "^text.format.regex"),
    *(
        (CHAT, {name: "x"}, f"^{name}: must be absent: ")
        for name in ("guided_whitespace_pattern", "grammar_triggers", "format")
    ),
    (CHAT, {"grammar": {"type": "json", "value": SCHEMA}}, "^grammar: must be a string"),
    (CHAT, {"json_schema": SCHEMA, "grammar": "a"}, "asked for once, got json_schema and grammar"),
    (
        CHAT,
        {"response_format": {"type": "json_schema"}},
        "^response_format.json_schema: must be an",
    ),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema"}}},
        "^text.format.schema: must be a JSON",
    ),
    (CHAT, {"response_format": {}}, "^response_format.type: must be 'text', .*, got none"),
    (CHAT, {"response_format": {"type": None}}, "^response_format.type: must be .*, got none"),
    (CHAT, {"response_format": {"json_schema": {}}}, "^response_format.type: must be .*, got none"),
    (RESPONSES, {"text": {"format": {}}}, "^text.format.type: must be 'text', .*, got none"),
    (
        CHAT,
        {"structured_outputs": {"choice": []}},
        "^structured_outputs.choice: must have at least 1",
    ),
    (CHAT, {"guided_choice": []}, "^guided_choice: must have at least 1 item, got 0"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "^response_format.json_schema.schema: must be a JSON schema, got none",
    ),
    (RESPONSES, {"text": {"format": {"type": 5}}}, "^text.format.type: must be a string"),
    (CHAT, {"guided_json": 5}, "^guided_json: must be an object"),
    (CHAT, {"guided_choice": [5]}, "^guided_choice: must hold strings"),
    (
        CHAT,
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "must be asked for once, got response_format and guided_regex",
    ),
    (CHAT, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "exactly one of .*, got 2"),
    (CHAT, {"structured_outputs": {"backend": "x"}}, "backend: must be absent"),
    (
        CHAT,
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "disable_any_whitespace: must be absent",
    ),
    (CHAT, {"guided_regex": "a" * 70_000}, "^guided_regex: must be at most 65536"),
]


@pytest.mark.parametrize(("field", "body", "expected"), BODIES)
def test_bodies(field: str, body: dict[str, Any], expected: StructuredOutputsParams | None) -> None:
    assert read_structured_outputs(Fields(body), field) == expected


@pytest.mark.parametrize(("body", "expected"), SPELLINGS)
@pytest.mark.parametrize("field", [CHAT, RESPONSES])
def test_words_of_other_servers(
    field: str, body: dict[str, Any], expected: StructuredOutputsParams | None
) -> None:
    body = dict(body)
    if field == RESPONSES and "response_format" in body:
        body["text"] = {"format": body.pop("response_format")}
    assert read_structured_outputs(Fields(body), field) == expected


@pytest.mark.parametrize(("field", "body", "message"), REFUSED)
def test_refused(field: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_structured_outputs(Fields(body), field)
