"""A grammar is one of five things, of a bounded size, and its refusal names the field."""

from typing import Any

import pytest

from quire import SamplingParams, StructuredOutputsParams
from quire.contract.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "structured_outputs", ("exactly one", "none")),
        ({"choice": ()}, "structured_outputs", ("exactly one", "none")),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs", ("one of", "regex and choice")),
        ({"json": "x" * 65537}, "structured_outputs.json", ("65536", "65537")),
        ({"json": {"enum": ["x" * 65536]}}, "structured_outputs.json", ("65536", "65550")),
        ({"json": {"enum": [b"x"]}}, "structured_outputs.json", ("JSON schema", "bytes")),
        ({"regex": "x" * 65537}, "structured_outputs.regex", ("65536", "65537")),
        ({"regex": ""}, "structured_outputs.regex", ("1 character", "0")),
        ({"regex": 3}, "structured_outputs.regex", ("text", "int")),
        ({"regex": "\ud800"}, "structured_outputs.regex", ("Unicode", "surrogate")),
        ({"grammar": "x" * 65537}, "structured_outputs.grammar", ("65536", "65537")),
        ({"choice": ["a"] * 1025}, "structured_outputs.choice", ("1024", "1025")),
        ({"choice": ["a" * 65536, "b"]}, "structured_outputs.choice", ("65536", "65537")),
        ({"choice": ["a", ""]}, "structured_outputs.choice", ("1 character", "0")),
        ({"choice": "yes"}, "structured_outputs.choice", ("list", "'yes'")),
    ],
)
def test_refusal_names_field_limit_and_value(
    given: dict[str, Any], field: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputsParams(**given)
    assert caught.value.field == field
    for word in words:
        assert word in caught.value.description


def test_a_schema_is_taken_as_text_or_as_an_object() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["é", 1]}}}
    as_object, as_text = (
        StructuredOutputsParams(schema),
        StructuredOutputsParams(
            '{"type": "object", "properties": {"a": {"enum": ["\\u00e9", 1]}}}'
        ),
    )
    assert as_object == as_text
    assert hash(as_object) == hash(as_text)
    deep: Any = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequestError, match="nested that deeply"):
        StructuredOutputsParams(deep)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"n": 2, "use_beam_search": True, "temperature": 0.0}, "structured_outputs"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_what_does_not_go_with_a_grammar_is_refused_by_name(
    params: dict[str, Any], field: str
) -> None:
    grammar = {"structured_outputs": StructuredOutputsParams(regex="a")}
    with pytest.raises(InvalidRequestError, match=f"^{field}: must be"):
        SamplingParams(**{**grammar, **params})
