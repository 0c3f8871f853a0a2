"""Outputs that a forced call's grammar takes are calls to the parser, and others are not taken."""

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quire.contract.chat import Tool
from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import as_lark
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.events import ArgumentsDelta, ToolCallBegan
from router.chat.parsers.forced import answer_after_reasoning, call_or_answer, forced_call
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from tests.unit.router.parsers.schema_walks import Walks

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", parameters=json.dumps(SCHEMA)), Tool("now"))
ARGUMENTS = '{"city": "Paris", "days": 3}'
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = [
    *("[TOOL_CALLS]", "[ARGS]", harmony.CHANNEL, harmony.MESSAGE, harmony.START, "<|constrain|>"),
    *(deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN, deepseek.CALL_END),
    *(deepseek.SEPARATOR, *harmony.ENDS, "</s>"),
]
V3 = "{begin}{call}function{sep}weather\n```json\n{args}\n```{call_end}{end}"
V31 = "{begin}{call}weather{sep}{args}{call_end}{end}"
MARKS = {
    "begin": deepseek.CALLS_BEGIN,
    "end": deepseek.CALLS_END,
    "call": deepseek.CALL_BEGIN,
    "call_end": deepseek.CALL_END,
    "sep": deepseek.SEPARATOR,
    "args": ARGUMENTS,
}
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
OUTPUTS = {
    "hermes": HERMES,
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": f'{{"name": "weather", "parameters": {ARGUMENTS}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}",
    "deepseek_v3": V3.format(**MARKS),
    "deepseek_v31": V31.format(**MARKS),
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "openai": "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}",
}


# Each of these refers to the next one twice.
DOUBLING = {
    "properties": {"a": {"$ref": "#/$defs/0"}},
    "$defs": {
        **{str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)},
        "40": {"type": "string"},
    },
}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token for each byte, and special ones."""
    made = Tokenizer(models.BPE({byte: number for number, byte in enumerate(BYTES)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


def takes(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    """Whether a text is one that the grammar lets end."""
    eos = tokenizer.token_to_id("</s>")
    matcher = LLMatcher(LLTokenizer(tokenizer.to_str(), eos_token=eos), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def test_every_format_is_here() -> None:
    assert OUTPUTS.keys() == TOOL_CALL_PARSERS.keys()


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_call_is_forced(tokenizer, name) -> None:
    output, text = OutputFormat(name), OUTPUTS[name]
    special = {each: tokenizer.token_to_id(each) for each in SPECIAL}
    for chosen in ("", "weather"):
        grammar = forced_call(output, TOOLS, chosen, special)
        assert takes(tokenizer, grammar, text)
        assert not takes(tokenizer, grammar, "It rains.")
        assert not takes(tokenizer, grammar, text.replace("weather", "whether"))
        assert not takes(tokenizer, grammar, text.replace("3", "x"))
    assert not takes(tokenizer, forced_call(output, TOOLS, "now", special), text)
    parser = output.parser("request", 0, TOOLS)
    assert parser is not None
    events = parser.feed(text) + parser.finish()
    assert [each.name for each in events if isinstance(each, ToolCallBegan)] == ["weather"]
    arguments = "".join(each.text for each in events if isinstance(each, ArgumentsDelta))
    assert json.loads(arguments) == json.loads(ARGUMENTS)


def test_several_calls_unless_one_is_named(tokenizer) -> None:
    text = f"{HERMES}\n{HERMES}"
    assert takes(tokenizer, forced_call(OutputFormat("hermes"), TOOLS), text)
    assert not takes(tokenizer, forced_call(OutputFormat("hermes"), TOOLS, "weather"), text)


def test_one_call_where_no_more_are_wanted(tokenizer) -> None:
    grammar = forced_call(OutputFormat("hermes"), TOOLS, is_single=True)
    assert takes(tokenizer, grammar, HERMES)
    assert not takes(tokenizer, grammar, f"{HERMES}\n{HERMES}")


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_strict_tool_is_called_by_its_schema_or_not_at_all(tokenizer, name) -> None:
    output, text = OutputFormat(name), OUTPUTS[name]
    special = {each: tokenizer.token_to_id(each) for each in SPECIAL}
    strict = (replace(TOOLS[0], is_strict=True), TOOLS[1])
    grammar = call_or_answer(output, strict, None, special)
    said = "It rains. <b>{3}"
    if name == "openai":
        thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
        said = f"{thought}<|channel|>final<|message|>{said}"
    assert takes(tokenizer, grammar, said)
    assert takes(tokenizer, grammar, text)
    assert not takes(tokenizer, grammar, text.replace("3", '"x"').replace('\n"x"\n', "\nx\n"))
    assert not takes(tokenizer, grammar, text.replace("weather", "whether"))
    loose = call_or_answer(output, TOOLS, None, special)
    assert takes(tokenizer, loose, text.replace("3", '"x"'))
    if name not in ("llama3_json", "openai"):
        assert takes(tokenizer, grammar, f"Let me see.\n{text}")
    if name != "openai":
        several = text + {"mistral": "", "llama3_json": "; "}.get(name, "\n") + text
        if name.startswith("deepseek"):
            first = text.removesuffix(deepseek.CALLS_END)
            between = "\n" if name == "deepseek_v3" else ""
            several = first + between + text.removeprefix(deepseek.CALLS_BEGIN)
        assert takes(tokenizer, grammar, several)
        single = call_or_answer(output, strict, None, special, is_single=True)
        assert takes(tokenizer, single, text)
        assert not takes(tokenizer, single, several)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_call_or_an_answer_in_the_format(tokenizer, name) -> None:
    output, text = OutputFormat(name), OUTPUTS[name]
    special = {each: tokenizer.token_to_id(each) for each in SPECIAL}
    answer = as_lark(StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}}))
    grammar = call_or_answer(output, TOOLS, answer, special)
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    assert takes(tokenizer, grammar, text)
    assert takes(tokenizer, grammar, f"{final}[1, 2]")
    assert not takes(tokenizer, grammar, f"{final}It rains.")
    assert not takes(tokenizer, grammar, f"{final}[1, 2]{text}")


def test_reasoning_comes_before_calls_and_answers(tokenizer) -> None:
    output = OutputFormat("hermes", "qwen3")
    strict = (replace(TOOLS[0], is_strict=True),)
    within = call_or_answer(output, strict, None, is_reasoning=True)
    assert takes(tokenizer, within, f"Hm </b>\n</think>\n\n{HERMES}")
    assert takes(tokenizer, within, "Hm\n</think>\nIt rains.")
    assert not takes(tokenizer, within, "It rains.")
    before = call_or_answer(output, strict, None)
    for said in ("It rains.", f"<think>Hm</think>\n{HERMES}", "<think>Hm</think>It rains."):
        assert takes(tokenizer, before, said)
    asked = call_or_answer(
        output, strict, as_lark(StructuredOutputsParams(regex="[0-9]")), is_reasoning=True
    )
    assert takes(tokenizer, asked, "Hm</think>7")
    assert takes(tokenizer, asked, f"Hm</think>{HERMES}")
    assert not takes(tokenizer, asked, "Hm</think>It rains.")


def test_marks_are_tokens_where_a_tokenizer_has_added_them() -> None:
    """Those of Qwen and GLM are added, and not special: no text of a grammar becomes such a one."""
    walks = Walks(has_marks=True)
    for name in ("hermes", "glm45", "qwen3_coder"):
        output = OutputFormat(name, "qwen3")
        assert walks.takes(forced_call(output, TOOLS, "", walks.added), OUTPUTS[name])
        thought = f"Hm</think>\n{OUTPUTS[name]}"
        assert walks.takes(forced_call(output, TOOLS, "", walks.added, is_reasoning=True), thought)
        either = call_or_answer(output, TOOLS, None, walks.added)
        assert walks.takes(either, f"<think>Hm</think>\nSo: {OUTPUTS[name]}")
        assert walks.takes(either, "It rains.")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {}, "not": {}}, "got not"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "a reference to '#/\\$defs/b'"),
        ({"oneOf": [{"properties": {"a": {}}}, {}]}, "oneOf"),
        ({"allOf": [{"anyOf": [{}] * 20}, {"anyOf": [{}] * 20}]}, "more than 256"),
        ({"const": {"a": 1}}, "const"),
        (DOUBLING, "too many references"),
        ({"properties": {"a": nested(300)}}, "nested less deeply"),
        ({"properties": {"a": False}, "required": ["a"]}, "a value of a"),
    ],
)
def test_what_tags_cannot_hold_is_refused_by_name(schema, reason) -> None:
    tools = (Tool("f", parameters=json.dumps(schema)),)
    with pytest.raises(InvalidRequestError, match=rf"^tools\[0\].parameters: must be .*{reason}"):
        forced_call(OutputFormat("glm45"), tools)


def test_reasoning_ends_first(tokenizer) -> None:
    grammar = forced_call(OutputFormat("hermes", "qwen3"), TOOLS, is_reasoning=True)
    assert takes(tokenizer, grammar, f"Hm <b>\n</think>\n\n{HERMES}")
    assert not takes(tokenizer, grammar, HERMES)
    assert not takes(tokenizer, grammar, "Hm</think>It rains.")


@pytest.mark.parametrize("name", ["glm45", "qwen3_coder"])
def test_names_of_arguments_are_no_grammar(tokenizer, name) -> None:
    """A client's schema is quoted, whatever stands in it."""
    schema = {"properties": {'a" /.*/ "': {"enum": ["é", '"'], "type": "string"}}}
    tools = (Tool("f", parameters=json.dumps(schema)),)
    grammar = forced_call(OutputFormat(name), tools)
    assert not takes(tokenizer, grammar, "It rains.")


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        (StructuredOutputsParams(json={"type": "integer"}), "12", "x"),
        (StructuredOutputsParams(json_object=True), '{"a": 1}', "[]"),
        (StructuredOutputsParams(regex="a/\n[/]\\/\\\\b"), "a/\n//\\b", "a/\n//b"),
        (StructuredOutputsParams(choice=('"', "é\n")), "é\n", "e"),
    ],
)
def test_an_answer_comes_after_reasoning(tokenizer, asked, right, wrong) -> None:
    answer = as_lark(asked)
    assert answer is not None
    grammar = answer_after_reasoning(OutputFormat("none", "qwen3"), answer)
    assert takes(tokenizer, grammar, f"Hm\n</think>\n\n{right}")
    assert not takes(tokenizer, grammar, f"Hm\n</think>\n\n{wrong}")
    assert not takes(tokenizer, grammar, right)
    special = {each: tokenizer.token_to_id(each) for each in SPECIAL}
    harmony_grammar = answer_after_reasoning(
        OutputFormat("openai", "openai_gptoss"), answer, special
    )
    thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    assert takes(tokenizer, harmony_grammar, f"{thought}<|channel|>final<|message|>{right}")
    assert takes(tokenizer, harmony_grammar, f"<|channel|>final<|message|>{right}")
    assert not takes(tokenizer, harmony_grammar, f"{thought}<|channel|>final<|message|>{wrong}")
