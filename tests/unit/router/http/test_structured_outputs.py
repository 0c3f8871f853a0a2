"""Which grammar a JSON body asks for, in each API's words, and which bodies are refused."""

from typing import Any

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from router.http.fields import Fields
from router.http.structured_outputs import read_structured_outputs

SCHEMA = {"type": "integer"}
JSON = StructuredOutputsParams(json=SCHEMA)
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
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": {"type": "xml"}}, r"^response_format.type: must be 'text', .*'xml'"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "^response_format.schema: must be a JSON"),
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
    (CHAT, {"structured_outputs": {"structural_tag": "x"}}, "structural_tag: must be absent"),
    (
        CHAT,
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "disable_any_whitespace: must be absent",
    ),
    (CHAT, {"guided_regex": "a" * 70_000}, "^structured_outputs.regex: must be at most 65536"),
]


@pytest.mark.parametrize(("field", "body", "expected"), BODIES)
def test_bodies(field: str, body: dict[str, Any], expected: StructuredOutputsParams | None) -> None:
    assert read_structured_outputs(Fields(body), field) == expected


@pytest.mark.parametrize(("field", "body", "message"), REFUSED)
def test_refused(field: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_structured_outputs(Fields(body), field)
