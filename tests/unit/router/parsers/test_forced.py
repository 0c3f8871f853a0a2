"""Outputs that a forced call's grammar takes are calls to the parser, and others are not taken."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quire.contract.chat import Tool
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import as_lark
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.events import ArgumentsDelta, ToolCallBegan
from router.chat.parsers.forced import answer_after_reasoning, forced_call
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat

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
