"""What each kind of grammar takes, of any tokenizer, and how a bad one is refused."""

import json
import re
from random import Random
from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken

from launch.cluster.config import embedded_model
from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import open_matcher, open_vocabulary, why_failed
from quire.tokenizer_files import load_backend
from tests.fakes import small_tokenizers

OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'

# llama.cpp's notation: what a rule may take is not all that it has to.
GBNF = r"""# A "list" of A / B
root ::= first second
first ::= "- " word "\n"
second ::= "- " (word mark) "\n"
word ::= [a-z]+
mark ::= "x" [0-9]
"""
# As pydantic writes a union that a member tells apart which has a default.
PETS = {
    "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    "discriminator": {"propertyName": "a"},
    "$defs": {
        name: {"type": "object", "properties": {"a": {"const": name}}} for name in ("cat", "dog")
    },
}


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return open_vocabulary(load_backend(str(embedded_model())), 4096, (0,))


def takes(vocabulary: LLTokenizer, text: str, params: StructuredOutputsParams) -> bool:
    """Whether a text is complete in the language of a grammar."""
    matcher = open_matcher(vocabulary, params)
    token_ids = vocabulary.tokenize_bytes(text.encode())
    taken = matcher.try_consume_tokens(token_ids)
    assert why_failed(matcher) == ""
    return taken == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "text", "is_taken"),
    [
        ({"regex": r"\\/"}, r"\/", True),
        ({"regex": r"a\/b"}, "a/b", True),
        ({"regex": r"[/\\]+"}, "/\\/", True),
        ({"regex": 'a"/"b'}, 'a"/"b', True),
        ({"regex": "^a$"}, "a", True),
        ({"regex": "a"}, "ab", False),
        ({"grammar": 'start: "a" b\nb: /[0-9]/ b?'}, "a123", True),
        ({"grammar": 'start: "a" b\nb: /[0-9]/ b?'}, "a", False),
        ({"json_object": True}, '{"any": [1, null]}', True),
        ({"json_object": True}, "[1]", False),
        ({"json": OBJECT}, '{"a": 1}', True),
        ({"json": OBJECT}, '{\n  "a": 1\n}', True),
        ({"json": OBJECT}, '{"a": "1"}', False),
        ({"json": OBJECT}, '{"a":' + " " * 41 + "1}", False),  # blanks have an end
        ({"json": {"type": "array", "x-guidance": {"whitespace_flexible": False}}}, "[ ]", False),
        ({"json": "true"}, "17", True),
        ({"json": {"type": "string", "format": "password"}}, '"x"', True),
        ({"json": {"items": {"anyOf": [{"type": "string", "format": "path"}]}}}, '["x"]', True),
        ({"json": {"type": "string", "format": "date"}}, '"x"', False),
        ({"json": {"properties": {"format": {"const": 1}}}}, '{"format": 2}', False),
        ({"json": {"const": {"format": "byte"}}}, '{"format": "byte"}', True),
        ({"json": {"$ref": "#/$defs/A[B]", "$defs": {"A[B]": {"const": 1}}}}, "1", True),
        ({"grammar": GBNF}, "- ab\n- cx1\n", True),
        ({"grammar": GBNF}, "- ab\n- cx\n", False),
        ({"grammar": 'root::="A" | "B" '}, "B", True),
        ({"grammar": 'start: "a" // x ::= y'}, "a", True),
        ({"json": {"propertyNames": {"enum": ["a.b"]}, "type": "object"}}, '{"a.b": 1}', True),
        ({"json": {"propertyNames": {"enum": ["a.b"]}, "type": "object"}}, '{"acb": 1}', False),
        ({"json": {"propertyNames": {"maxLength": 1}, "type": "object"}}, '{"ab": 1}', False),
        ({"json": PETS}, '{"b": 1}', False),
        ({"json": PETS}, '{"a": "dog"}', True),
    ],
)
def test_a_grammar_takes_its_language(
    vocabulary: LLTokenizer, grammar: dict[str, object], text: str, is_taken: bool
) -> None:
    assert takes(vocabulary, text, StructuredOutputsParams(**grammar)) == is_taken


def test_a_choice_is_taken_to_the_letter(vocabulary: LLTokenizer) -> None:
    draw = Random(0)
    characters = '\0\1 /\\"\n\x7f\x80\u2028é😀{}[]().*+?|^$#&~-a0'
    for _ in range(100):
        text = "".join(draw.choices(characters, k=draw.randint(1, 8)))
        params = StructuredOutputsParams(choice=[text, "zz"])
        assert takes(vocabulary, text, params), repr(text)
        assert not takes(vocabulary, text + "z", params), repr(text)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ({"regex": "a\\"}, "structured_outputs.regex: .* a backslash at its end"),
        ({"regex": "(a"}, "structured_outputs.regex: .*unclosed group"),
        ({"regex": "(?=a)b"}, "structured_outputs.regex: .*look-around"),
        ({"regex": r"(a)\1"}, "structured_outputs.regex: .*backreferences"),
        ({"grammar": "start: x"}, "structured_outputs.grammar: .*unknown name"),
        ({"grammar": "root ::= x"}, "structured_outputs.grammar: .*'x' not found"),
        ({"grammar": "root ::= ("}, "structured_outputs.grammar: .*Expected"),
        ({"grammar": "root ::= " + "(" * 3000}, "structured_outputs.grammar: .*recursion"),
        ({"json": '{"a"'}, "structured_outputs.json: .*delimiter"),
        ({"json": "[" * 5000}, "structured_outputs.json: .*nested too deeply"),
        ({"json": '{"a":' * 150 + "1" + "}" * 150}, "structured_outputs.json: .*recursion limit"),
        ({"json": {"not": {}}}, "structured_outputs.json: .*Unimplemented keys"),
        ({"json": {"type": "objekt"}}, "structured_outputs.json: .*objekt"),
        ({"json": "false"}, "structured_outputs.json: .*Unsatisfiable"),
    ],
)
def test_a_bad_grammar_is_refused_in_one_line(
    vocabulary: LLTokenizer, grammar: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{words}") as caught:
        open_matcher(vocabulary, StructuredOutputsParams(**grammar))
    assert "\n" not in caught.value.message
    assert "start:" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("make", [small_tokenizers.byte_level, small_tokenizers.byte_fallback])
def test_other_tokenizers_spell_the_same_texts(make) -> None:
    vocabulary = open_vocabulary(make(), 1000, (1,))
    for text in ("naïve 中文", "a b\tc"):
        assert takes(vocabulary, text, StructuredOutputsParams(choice=[text]))


@pytest.mark.parametrize(
    "annotation",
    [
        {"$comment": "of whoever wrote it"},
        {"contentEncoding": "base64"},
        {"contentMediaType": "image/png"},
        {"contentSchema": {"type": "object"}},
        {"deprecated": True},
        {"description": "what it is"},
        {"example": "a"},
        {"examples": ["a"]},
        {"nullable": False},
        {"readOnly": True},
        {"title": "A"},
        {"writeOnly": True},
        {"x-order": 3},
    ],
    ids=lambda annotation: next(iter(annotation)),
)
def test_what_says_nothing_of_a_text_refuses_no_schema(annotation: dict[str, Any]) -> None:
    vocabulary = open_vocabulary(small_tokenizers.byte_level(), 1000, (1,))
    named = {"type": "object", "properties": {"a": {"type": "string", **annotation}}}
    for schema in (named, {**named, **annotation}):
        assert takes(vocabulary, '{"a":"b"}', StructuredOutputsParams(json=schema))


# Added to a vocabulary: one that ends texts, a special one, and one that is not special.
ADDED = ("</s>", "<|user|>", "<tool_call>")


@pytest.mark.parametrize("text", ["a</s>b", "<|user|>", "<tool_call>{", "</s></s>"])
@pytest.mark.parametrize("kind", ["const", "enum", "name", "choice", "regex", "lark"])
def test_text_that_reads_as_a_token_is_spelled_out(kind: str, text: str) -> None:
    """Such a token would be refused, or end the text."""
    backend = small_tokenizers.byte_level()
    backend.add_tokens([AddedToken(ADDED[1], special=True), AddedToken(ADDED[2], special=False)])
    named = {"type": "object", "properties": {text: {"const": 1}}, "required": [text]}
    whitespace = {"x-guidance": {"whitespace_flexible": False}}
    grammar, wanted = {
        "const": ({"json": {"const": text}}, json.dumps(text)),
        "enum": ({"json": {"enum": [text]}}, json.dumps(text)),
        "name": (
            {"json": {**named, "additionalProperties": False, **whitespace}},
            f'{{"{text}":1}}',
        ),
        "choice": ({"choice": [text]}, text),
        "regex": ({"regex": re.escape(text)}, text),
        "lark": ({"grammar": f"start: {json.dumps(text)}"}, text),
    }[kind]
    vocabulary = open_vocabulary(backend, 1000, (1,))
    matcher = open_matcher(vocabulary, StructuredOutputsParams(**grammar))
    added = {backend.token_to_id(each) for each in ADDED}
    taken: list[int] = []
    while not matcher.is_stopped():
        mask = matcher.compute_bitmask()
        allowed = {i for i in range(vocabulary.vocab_size) if mask[i // 8] >> i % 8 & 1}
        if allowed == {1}:  # all that is left is the end
            break
        assert not allowed & added
        taken.append(min(allowed))
        matcher.consume_token(taken[-1])
        assert why_failed(matcher) == ""
    assert vocabulary.decode_bytes(taken).decode() == wanted
    assert matcher.is_accepting()
