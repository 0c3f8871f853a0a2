"""Structural tags become grammars that allow what they say, and nothing else."""

import json
import sys
from typing import Any

import pytest

from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, open_vocabulary
from router.chat.structural_tags import structural_tag_grammar
from tests.fakes.small_tokenizers import byte_level

BACKEND = byte_level()
VOCABULARY = open_vocabulary(BACKEND, BACKEND.get_vocab_size(), [0])
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CALL = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": NUMBER}, "end": "</f>"}
OLD = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": NUMBER, "end": "</f>"}],
    "triggers": ["<f"],
}


def allows(spec: object, text: str) -> bool:
    """Return whether the grammar of tags derives a text, from its beginning to its end."""
    grammar = structural_tag_grammar(json.dumps(spec), {})
    matcher = open_matcher(VOCABULARY, StructuredOutputsParams(grammar=grammar))
    token_ids = BACKEND.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def triggered(**own: Any) -> dict[str, Any]:
    return {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], **own}}


ANY: dict[str, Any] = {"type": "any_text"}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "sequence", "elements": elements}}


def test_text_that_nothing_ends_comes_last() -> None:
    begin = {"type": "const_string", "value": "a: "}
    ended = {"begin": "<b>", "content": ANY, "end": "</b>"}
    assert allows(sequence(begin, ended, ANY), "a: <b>x</b> y")
    assert allows({"format": {"type": "json_schema", "json_schema": {}, "style": "json"}}, "{}")


@pytest.mark.parametrize("spec", [OLD, triggered()])
def test_text_is_free_until_a_trigger(spec: object) -> None:
    for text in ("", "hello", 'a <f>{"n": 1}</f> b', '<f>{"n": 1}</f><f>{"n": 2}</f>'):
        assert allows(spec, text), text
    for text in ('a <f>{"n": "x"}</f>', "<f>no</f>", '<f>{"n": 1}', "<fx"):
        assert not allows(spec, text), text


def test_one_may_be_wanted_and_one_alone() -> None:
    assert not allows(triggered(at_least_one=True), "hello")
    assert allows(triggered(at_least_one=True), 'hello <f>{"n": 1}</f> there')
    once = triggered(stop_after_first=True)
    assert allows(once, 'a <f>{"n": 1}</f>')
    assert not allows(once, 'a <f>{"n": 1}</f> b')


def test_a_tree_of_formats_is_what_it_says() -> None:
    tree = {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "a: "},
            {
                "type": "or",
                "elements": [
                    {"type": "regex", "pattern": "[0-9]+"},
                    {"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": "]"},
                ],
            },
        ],
    }
    spec = {"type": "structural_tag", "format": tree}
    for text in ("a: 12", "a: [x y]"):
        assert allows(spec, text), text
    for text in ("12", "a: x", "a: [x"):
        assert not allows(spec, text), text


def test_tags_may_stand_one_after_the_other() -> None:
    spec = {"format": {"type": "tags_with_separator", "tags": [CALL], "separator": ", "}}
    for text in ("", '<f>{"n": 1}</f>', '<f>{"n": 1}</f>, <f>{"n": 2}</f>'):
        assert allows(spec, text), text
    for text in ("x", '<f>{"n": 1}</f><f>{"n": 2}</f>'):
        assert not allows(spec, text), text


def test_a_mark_that_is_a_token_is_one() -> None:
    grammar = structural_tag_grammar(json.dumps(OLD), {"<f>": 7})
    assert "<[7]>" in grammar


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("{", ""),
        ([], ""),
        ({"structures": 1}, ".structures"),
        ({"structures": [{"begin": "<f>", "schema": {}, "end": ""}]}, ".format.triggers"),
        ({"structures": [{"schema": {}, "end": ""}], "triggers": ["<"]}, ".format.tags[0].begin"),
        ({"format": {"type": "grammar", "grammar": "root ::= a"}}, ".format.type"),
        ({"format": {"type": "json_schema", "json_schema": "{"}}, ".format.json_schema"),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<g"], "tags": [CALL]}},
            ".format.tags[0].begin",
        ),
        ({"format": {"type": "or", "elements": []}}, ".format.elements"),
        ({"format": {"type": "any_text", "excludes": ["x"]}}, ".format.excludes"),
        (triggered(excludes=["x"]), ".format.excludes"),
        (triggered(stop_after_first="false"), ".format.stop_after_first"),
        (triggered(tags=[{**CALL, "until": "x"}]), ".format.tags[0].until"),
        (
            {"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}},
            ".format.style",
        ),
        (sequence(ANY, {"type": "const_string", "value": "END"}), ".format.elements[0]"),
        (sequence(sequence(ANY)["format"], ANY), ".format.elements[0]"),
        (sequence(triggered()["format"], CALL), ".format.elements[0]"),
        (sequence({"begin": "<a>", "content": ANY, "end": ""}, CALL), ".format.elements[0]"),
        (
            {"format": {"begin": "a", "content": sequence(ANY)["format"], "end": "b"}},
            ".format.content",
        ),
        (
            {
                "format": {
                    "type": "tags_with_separator",
                    "tags": [{"begin": "a", "content": ANY, "end": ""}],
                    "separator": ",",
                }
            },
            ".format.tags[0]",
        ),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(spec: object, field: str) -> None:
    text = spec if isinstance(spec, str) else json.dumps(spec)
    with pytest.raises(InvalidRequestError) as caught:
        structural_tag_grammar(text, {})
    assert caught.value.field == f"structured_outputs.structural_tag{field}"


def test_a_tree_is_not_too_deep() -> None:
    tree: dict[str, Any] = {"type": "any_text"}
    for _ in range(20):
        tree = {"type": "sequence", "elements": [tree]}
    with pytest.raises(InvalidRequestError, match="nested at most 16 deep"):
        structural_tag_grammar(json.dumps({"format": tree}), {})


def test_a_schema_that_is_nested_too_deeply_is_refused_by_its_place() -> None:
    text = '{"items":' * 450 + "{}" + "}" * 450
    tag = {"format": {"type": "json_schema", "json_schema": "SCHEMA"}}
    spec = json.dumps(tag).replace('"SCHEMA"', text)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(600)
    try:
        with pytest.raises(InvalidRequestError, match=r"format.json_schema: must be nested less"):
            structural_tag_grammar(spec, {})
    finally:
        sys.setrecursionlimit(limit)


def test_an_error_shows_the_beginning_of_a_kind() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        structural_tag_grammar(json.dumps({"format": {"type": "x" * 10_000}}), {})
    assert len(caught.value.message) < 400
