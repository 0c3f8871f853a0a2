"""Calls that are cut or break, in all formats: no markup is content, and no broken JSON is called.

Cases are drawn by a seed, which a failure names.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage
from quire.contract.outputs import FinishReason
from router.chat.parsers import deepseek, harmony
from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.formats import TOOL_CALL_PARSERS, OutputFormat
from router.chat.reader import OutputReader
from tests.output_formats import BEGIN, CASES, END, HARMONY, TOOLS, V31, json_calls

MARKUP = (
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|python_tag|>", "<|constrain|>", harmony.START, harmony.CHANNEL, harmony.MESSAGE),
    *(*harmony.ENDS, deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN),
    *(deepseek.CALL_END, deepseek.SEPARATOR, "```", '{"name'),
)
# One behind the other where the format has that.
FORMATS = json_calls("weather")
TAGGED = {
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa\nris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nPa\nris\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
}
CALLS = {name: text % '{"city": "Pa\\nris", "days": 3}' for name, text in FORMATS.items()} | TAGGED
ARGUMENTS = {"city": "Pa\nris", "days": 3}


@dataclass
class Read:
    content: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)
    # Whether a front would say that the answer calls.
    has_called: bool = False


def output_of(name: str) -> OutputFormat:
    return HARMONY if name == "openai" else OutputFormat(name)


def read(
    output: OutputFormat,
    pieces: Sequence[str],
    choice: str = "auto",
    end: str = "",
    reason: FinishReason = FinishReason.STOP,
) -> Read:
    chat = ChatInput(
        [ChatMessage("user", "Hi")], SamplingParams(), TOOLS, choice, request_id="request"
    )
    reader = OutputReader(output, chat, lambda token: end, ())
    reader.begin([1])
    found = Read()
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        for event in reader.read(0, piece, (), reason if is_last else None):
            match event:
                case ContentDelta(text):
                    found.content += text
                case ReasoningDelta(text):
                    found.reasoning += text
                case ToolCallBegan():
                    found.calls.append("")
                case ArgumentsDelta(index, text):
                    assert index == len(found.calls) - 1
                    found.calls[index] += text
                case ToolCallEnded(index):
                    assert index == len(found.calls) - 1
    found.has_called = reader.has_called(0)
    return found


def both(output: OutputFormat, text: str, chance: random.Random, **options: Any) -> Read:
    """Return what a text means, in one piece as in any."""
    whole = read(output, [text], **options)
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(9)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(output, pieces, **options) == whole, pieces
    assert read(output, list(text), **options) == whole or not text
    return whole


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_all_formats_are_here() -> None:
    assert CALLS.keys() == TOOL_CALL_PARSERS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_forced_call_that_is_cut_has_no_content(name: str) -> None:
    chance, text = random.Random(f"forced {name}"), CALLS[name]
    thought = "Hm</think>\n\n" if name != "openai" else ""
    output = output_of(name) if not thought else OutputFormat(name, "qwen3")
    for place in range(len(text) + 1):
        options = {"choice": "required", "end": "<think>" if thought else ""}
        found = both(output, thought + text[:place], chance, **options)
        assert found.content == "", text[:place]
        assert found.reasoning == ("Hm" if thought else "")
        assert found.has_called == (found.calls != [] and is_json(found.calls[0]))
    between = "; " if name == "llama3_json" else "\n"
    several = both(output, f"{thought}{text}{between}{text}", chance, **options)
    assert (several.content, several.has_called) == ("", True)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cut_shows_no_markup(name: str) -> None:
    """A marker that is not there as a whole is text of an answer that has ended by itself."""
    chance, text = random.Random(f"cut {name}"), CALLS[name]
    before = "" if name in ("llama3_json", "openai") else "I look. "
    for place in range(len(text) + 1):
        cut = text[:place]
        found = both(output_of(name), before + cut, chance, reason=FinishReason.LENGTH)
        assert (found.content, found.reasoning) == (before, ""), cut
        ended = both(output_of(name), before + cut, chance)
        assert ended.calls == found.calls
        if any(len(cut) < len(mark) and mark.startswith(cut) for mark in MARKUP):
            assert ended.content == before + cut
        else:
            assert ended.content == before, cut
        # As far as it came; what is complete is called, what is not is never whole JSON.
        whole = read(output_of(name), [before + text]).calls[0]
        assert all(whole.startswith(each) for each in found.calls)
        assert found.has_called == any(each == whole for each in found.calls)
    assert json.loads(whole) == ARGUMENTS


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_that_is_cut_shows_no_markup(name: str) -> None:
    chance, text = random.Random(f"second {name}"), CALLS[name]
    between = "; " if name == "llama3_json" else "\n"
    for place in range(len(text) + 1):
        cut = f"{text}{between}{text[:place]}"
        found = both(output_of(name), cut, chance, reason=FinishReason.LENGTH)
        assert found.content == "", cut
        assert json.loads(found.calls[0]) == ARGUMENTS


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"llama3_json", "openai"}))
def test_spaces_between_calls_are_no_content(name: str) -> None:
    chance, text = random.Random(f"spaces {name}"), CALLS[name]
    for spaces in ("\n", " \n\n"):
        found = both(output_of(name), f"{text}{spaces}{text}{spaces}{text}{spaces}", chance)
        assert (found.content, len(found.calls), found.has_called) == ("", 3, True)
        found = both(output_of(name), f"{text}{spaces}then{spaces}{text}", chance)
        assert (found.content, len(found.calls)) == (f"{spaces}then{spaces}", 2)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR])
@pytest.mark.parametrize(
    ("output", "text", "reasoning", "content", "left_out"),
    [
        (OutputFormat("hermes"), "is 1 <", "", "is 1 ", "<"),
        (OutputFormat("hermes"), "is 1 < 2", "", "is 1 < 2", ""),
        (OutputFormat("mistral"), "a [T", "", "a ", "[T"),
        (OutputFormat("mistral"), "a [b", "", "a [b", ""),
        (OutputFormat("llama3_json"), '{"na', "", "", '{"na'),
        (OutputFormat("llama3_json"), '{"type": "func', "", "", '{"type": "func'),
        (OutputFormat("llama3_json"), '{"age": 1', "", '{"age": 1', ""),
        (OutputFormat("hermes", "qwen3"), " <thi", "", " ", "<thi"),
        (OutputFormat("hermes", "qwen3"), "<think>Hm</thin", "Hm", "", "</thin"),
        (OutputFormat("hermes", "qwen3"), "<think>Hm</think>Yes</think", "Hm", "Yes</think", ""),
        (OutputFormat("none", "deepseek_r1"), "<thi", "", "", "<thi"),
        (HARMONY, " t", "", "", " t"),
        (HARMONY, "<|chan", "", "", "<|chan"),
        (HARMONY, "<|channel|>final<|message|>Yes<|e", "", "Yes", "<|e"),
        (HARMONY, "<|channel|>analysis<|message|>Hm<|e", "Hm", "", "<|e"),
    ],
)
def test_the_beginning_of_a_marker_is_text_where_an_answer_ends(
    output: OutputFormat,
    text: str,
    reasoning: str,
    content: str,
    left_out: str,
    reason: FinishReason,
) -> None:
    chance = random.Random(text)
    found = both(output, text, chance, reason=reason)
    assert (found.reasoning, found.content, found.calls) == (reasoning, content, [])
    ended = both(output, text, chance)
    assert ended.reasoning + ended.content == reasoning + content + left_out


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "written", ["\n", "\t", "\r\n", "\x00", "\x1f", "\\\n", "\\\t", "\\\x01", "\b\f", "\x7f\u2028"]
)
def test_control_characters_in_texts_are_escaped(name: str, written: str) -> None:
    chance = random.Random(f"{name} {written}")
    arguments = '{"a": "b%sc",\n\t"d%s": ["%s"]}' % ((written,) * 3)
    found = both(output_of(name), FORMATS[name] % arguments, chance)
    meant = written.replace("\\", "")
    assert (found.content, found.has_called) == ("", True)
    assert json.loads(found.calls[0]) == {"a": f"b{meant}c", f"d{meant}": [meant]}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "broken",
    ['{"a" 1}', '{"a": True}', "{'a': 1}", '{"a": "\\x"}', '{"a": 1,}', '{"a": [1}', '{"a": .5}'],
)
def test_a_call_that_breaks_is_not_called(name: str, broken: str) -> None:
    """Its arguments are what the model wrote, and what stands behind the call is content."""
    chance = random.Random(f"{name} {broken}")
    found = both(output_of(name), FORMATS[name] % broken, chance)
    assert not found.has_called
    assert found.calls[0].startswith(broken)
    assert found.content == ""
    if name in ("hermes", "deepseek_v3", "deepseek_v31"):
        found = both(output_of(name), FORMATS[name] % broken + " And so.", chance)
        assert (found.content, found.has_called) == (" And so.", False)
    twice = both(output_of(name), FORMATS[name] % "{}" + FORMATS[name] % broken, chance)
    assert not twice.has_called or len(twice.calls) == 1


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        # The object's brace is missing, the most frequent fault of small models.
        ("hermes", '<tool_call>\n{"name": "now", "arguments": {}\n</tool_call>', ""),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}}}</tool_call> So', "} So"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}, "x": [1]}</tool_call>', ""),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}} And I wait.', " And I wait."),
        ("qwen3_coder", "<tool_call><function=now></function> So", " So"),
        ("deepseek_v31", f"{BEGIN}{V31 % ('now', '{}')} So {END}!", " So !"),
        ("deepseek_v31", f"{BEGIN}{V31[: -len(deepseek.CALL_END)] % ('now', '{}')}{END}!", "!"),
        ("openai", "<|channel|>commentary to=functions.now<|message|>{}}<|call|>", "}"),
    ],
)
def test_ends_of_a_call_are_no_content(name: str, text: str, content: str) -> None:
    found = both(output_of(name), text, random.Random(text))
    assert (found.content, found.calls, found.has_called) == (content, ["{}"], True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "The tag <tool_call> begins a call."),
        ("glm45", "The tag <tool_call> begins a call"),
        ("glm45", "<tool_call>weather is"),
        ("qwen3_coder", "The tag <tool_call> begins a call."),
        ("mistral", "The tag [TOOL_CALLS] begins a call"),
        ("llama3_json", '{"name": "Bob", "age'),
        ("llama3_json", '{"name": "Bob'),
        ("llama3_json", '{"city": '),
        ("hermes", "a <"),
    ],
)
def test_text_about_calls_is_content(name: str, text: str) -> None:
    found = both(output_of(name), text, random.Random(text))
    assert (found.content, found.calls) == (text, [])


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_breaks_is_called(seed: int) -> None:
    """Characters are put in, taken away and exchanged, and the end is cut off."""
    chance = random.Random(seed)
    outputs = [case[2] for case in CASES if case[5]] + list(CALLS.values())
    for _ in range(60):
        text = "".join(chance.choices(outputs, k=chance.randrange(1, 3)))
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(text) + 1)
            put = chance.choice(["", "", "\n", "\t", "\x02", *'"{}[],:\\<>ax', *MARKUP])
            text = text[:place] + put + text[place + chance.randrange(3) :]
        text = text[: chance.choice([len(text), chance.randrange(len(text) + 1)])]
        name, reason = chance.choice(list(CALLS)), chance.choice(list(FinishReason))
        for choice in ("auto", "required"):
            found = both(output_of(name), text, chance, choice=choice, reason=reason)
            if found.has_called:
                assert all(map(is_json, found.calls)), (name, text)
            else:
                assert not found.calls or not all(map(is_json, found.calls)), (name, text)
