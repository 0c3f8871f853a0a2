"""Values of tagged arguments that are JSON: what ends them may stand in their texts.

Cases are drawn by a seed, which a failure names.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from quire.contract.chat import Tool
from router.chat.parsers.events import (
    ArgumentsDelta,
    CallIds,
    ContentDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.formats import TOOL_CALL_PARSERS
from router.chat.parsers.machine import MAX_HELD_CHARS

FORMATS = {
    "glm45": (
        "<tool_call>f\n%s</tool_call>",
        "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n",
        "</arg_value>",
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n%s</function>\n</tool_call>",
        "<parameter=%s>\n%s\n</parameter>\n",
        "</parameter>",
    ),
}
# A call's own ends within its values, and what else stands in a call.
MARKS = (
    *("</arg_value>", "<arg_key>", "</tool_call>", "<tool_call>", "</parameter>", "<parameter="),
    *("</function>", "\n", "\t", "\r\n", "\x00", '"', "\\", "{", "}", "[", "]", " ", "a", "é", "1"),
)
STRING, NULL, OBJECT, ARRAY = ({"type": each} for each in ("string", "null", "object", "array"))
MAYBE = {"anyOf": [STRING, NULL]}


def call(name: str, values: dict[str, str]) -> str:
    outer, inner, _ = FORMATS[name]
    return outer % "".join(inner % each for each in values.items())


def read(name: str, pieces: Sequence[str], schemas: dict[str, Any]) -> list[Any]:
    """Return content and calls; of a call its arguments, and whether they are whole."""
    tools = (Tool("f", parameters=json.dumps({"type": "object", "properties": schemas})),)
    parser = TOOL_CALL_PARSERS[name](CallIds("id", 0), tools)
    found: list[Any] = []
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in [*events, *parser.finish()]:
        match event:
            case ContentDelta(text):
                found.append(text)
            case ToolCallBegan():
                found.append(["", False])
            case ArgumentsDelta(_, text):
                found[-1][0] += text
            case ToolCallEnded(_, is_whole):
                found[-1][1] = is_whole
    return found


def both(name: str, text: str, schemas: dict[str, Any], seed: str) -> list[Any]:
    """Return what a text means, in one piece as in any."""
    whole = read(name, [text], schemas)
    assert read(name, list(text), schemas) == whole, f"SEED={seed}"
    chance = random.Random(seed)
    for _ in range(10):
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(9)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(name, pieces, schemas) == whole, f"SEED={seed} {pieces}"
    return whole


def value(name: str, text: str, schema: Any) -> Any:
    """Return what an argument is, with one behind it."""
    schemas = {"x": schema, "y": STRING}
    [found] = both(name, call(name, {"x": text, "y": "1"}), schemas, text)
    assert found[1]
    arguments = json.loads(found[0])
    assert arguments["y"] == "1"
    return arguments["x"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "schema", [OBJECT, {}, {"anyOf": [OBJECT, NULL]}, {"type": ["object", "string"]}]
)
def test_an_end_within_a_text_of_json_ends_nothing(name: str, schema: Any) -> None:
    end = FORMATS[name][2]
    for inner in (end, f"\n{end}\n", f"a {end}</function></tool_call>", f'\\"{end}\\"', f"{end}<"):
        key = inner.replace("\n", "")
        text = f'{{"a{key}": ["b{inner}", 1]}}'
        expected = json.loads(text, strict=False)
        assert value(name, text, schema) == expected
        assert value(name, f" {text}\n ", schema) == expected


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schema", [OBJECT, ARRAY, {}, MAYBE])
def test_any_value_of_json(name: str, schema: Any) -> None:
    """Texts are drawn of all that stands in a call; a schema of texts takes JSON as it stands."""
    seed = f"{name} {schema}"
    chance = random.Random(seed)
    for _ in range(60):
        texts = ["".join(chance.choices(MARKS, k=chance.randrange(6))) for _ in range(3)]
        meant: Any = [texts, {"k": texts[0]}] if schema != OBJECT else {texts[0]: texts[1:]}
        written = json.dumps(meant, ensure_ascii=False, indent=chance.choice([None, 1]))
        if schema == MAYBE:
            texts = [each.replace("</", "") for each in texts]
            written = json.dumps(texts, ensure_ascii=False)
            meant = written
        elif chance.random() < 0.5:
            # As models write them: raw, where JSON forbids it.
            for raw in "\n\t\r\x00":
                written = written.replace(json.dumps(raw)[1:-1], raw)
            try:
                meant = json.loads(written, strict=False)
            except ValueError:
                continue  # behind a backslash
        assert value(name, written, schema) == meant, f"SEED={seed}"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("schema", "text", "meant"),
    [
        # Raw control characters are those of the text, where the schema asks for such JSON.
        (OBJECT, '{"a": "b\nc\td"}', {"a": "b\nc\td"}),
        (ARRAY, '["a\r\nb",\n"\x01"]', ["a\r\nb", "\x01"]),
        (ARRAY, '["a\\\nb"]', ["a\nb"]),
        ({}, '"a\nb"', "a\nb"),
        ({"$ref": "#/properties/z"}, '["a\nb"]', ["a\nb"]),
        (MAYBE, '["a\nb"]', '["a\nb"]'),
        (STRING, '{"a": "b\nc"}', '{"a": "b\nc"}'),
        # What is no JSON ends where it did.
        (OBJECT, '{"a": "b', '{"a": "b'),
        (OBJECT, '{"a": "b}', '{"a": "b}'),
        (ARRAY, "[1, 2", "[1, 2"),
        (ARRAY, '["a"] b', '["a"] b'),
        ({}, '"a" b', '"a" b'),
        ({}, '"', '"'),
        (MAYBE, '"a"', "a"),
    ],
)
def test_json_or_text(name: str, schema: Any, text: str, meant: Any) -> None:
    assert value(name, text, schema) == meant


@pytest.mark.parametrize("name", FORMATS)
def test_quotes_of_two_texts_are_no_json(name: str) -> None:
    """Where a text may stand as it is, what would be one in JSON with tags in it is two."""
    schemas = {"x": MAYBE, "y": MAYBE}
    [found] = both(name, call(name, {"x": '"a', "y": 'b"'}), schemas, name)
    assert (json.loads(found[0]), found[1]) == ({"x": '"a', "y": 'b"'}, True)
    end = FORMATS[name][2]
    [found] = both(name, call(name, {"x": f'"a{end}b"'}), schemas, name)
    assert (json.loads(found[0]), found[1]) == ({"x": f"a{end}b"}, True)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_cut_within_json(name: str) -> None:
    end = FORMATS[name][2]
    text = call(name, {"x": f'{{"a": "b{end} c"}}'})
    [whole] = both(name, text, {"x": OBJECT}, name)
    for place in range(text.index('{"a') + 1, text.index('"}') + 2):
        [found] = both(name, text[:place], {"x": OBJECT}, name)
        assert found == ['{"x": ', False] and whole[0].startswith(found[0])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [MAX_HELD_CHARS // 2, *range(-20, -10), MAX_HELD_CHARS * 2])
def test_what_waits_is_bounded(name: str, size: int) -> None:
    """A text of JSON that is too long to be kept ends as any other does: at the first end."""
    size = size if size > 0 else MAX_HELD_CHARS + size
    end, schemas = FORMATS[name][2], {"x": ARRAY}
    text = call(name, {"x": f'["{"y" * size}{end}"]'})
    [whole] = read(name, [text], schemas)
    num_chars = size + len(end) + len('[""]') + (name == "qwen3_coder")
    assert whole[1] == (num_chars <= MAX_HELD_CHARS)
    for length in (997, 64):
        pieces = [text[at : at + length] for at in range(0, len(text), length)]
        assert read(name, pieces, schemas) == [whole]
