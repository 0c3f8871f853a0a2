"""Tables of outputs, one for each format, and what every split of them gives."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.contract.chat import Tool
from router.chat.parsers import machine
from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.formats import OutputFormat
from router.chat.parsers.machine import MAX_CALLS, MAX_HELD_CHARS

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "any": {}}}
TOOLS = (Tool("weather", parameters=json.dumps(SCHEMA)), Tool("now"))
PARIS = '{"city": "Par\\"is", "at": [1, {"x": null}]}'


@dataclass
class Read:
    """What became of an output."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    # The kinds of what came, each as often as it changed.
    order: str = ""
    num_ended: int = 0

    def take(self, event: ParserEvent) -> None:
        match event:
            case ContentDelta(text):
                self.content += text
                self._note("c")
            case ReasoningDelta(text):
                self.reasoning += text
                self._note("r")
            case ToolCallBegan(index, call_id, name):
                assert index == len(self.calls) == self.num_ended
                self.calls.append([name, ""])
                self.ids.append(call_id)
                self._note(str(index))
            case ArgumentsDelta(index, text):
                assert text and index == len(self.calls) - 1 == self.num_ended
                self.calls[index][1] += text
            case ToolCallEnded(index):
                assert index == self.num_ended
                self.num_ended += 1

    def _note(self, kind: str) -> None:
        if not self.order.endswith(kind):
            self.order += kind


def read(output: OutputFormat, pieces: list[str], prompt_end: str = "") -> Read:
    parser = output.parser("request", 0, TOOLS, prompt_end)
    assert parser is not None
    found = Read()
    for piece in pieces:
        for event in parser.feed(piece):
            found.take(event)
    for event in parser.finish():
        found.take(event)
    assert found.num_ended == len(found.calls)
    return found


HERMES = OutputFormat("hermes")
LLAMA = OutputFormat("llama3_json")
MISTRAL = OutputFormat("mistral")
DEEPSEEK = OutputFormat("deepseek_v3")
GLM = OutputFormat("glm45")
CODER = OutputFormat("qwen3_coder")
HARMONY = OutputFormat("openai", "openai_gptoss")
R1 = OutputFormat("deepseek_v3", "deepseek_r1")
QWEN = OutputFormat("hermes", "qwen3")
MAGISTRAL = OutputFormat("mistral", "mistral")
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ARG = "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"
CITY = ARG % ("city", 'Pa"ris\n')
WEATHER = ["weather", PARIS]

# Format, end of the prompt, output; content, reasoning, calls.
CASES: list[tuple[OutputFormat, str, str, str, str, list[list[str]]]] = [
    (HERMES, "", "plain < text <tool", "plain < text <tool", "", []),
    (HERMES, "", f"I look.\n{CALL}", "I look.\n", "", [WEATHER]),
    (HERMES, "", f"{CALL}\n{CALL}\n", "", "", [WEATHER, WEATHER]),
    (HERMES, "", f"{CALL}\n and more", "\n and more", "", [WEATHER]),
    (HERMES, "", f'<tool_call>{{"arguments":{PARIS},"name":"now"}}</tool_call>', "", "",
     [["now", PARIS]]),
    (HERMES, "", '<tool_call>{"name": "now"}</tool_call>', "", "", [["now", "{}"]]),
    (HERMES, "", '<tool_call>{"name": "weather", "arguments": {"city": "Pa', "", "",
     [["weather", '{"city": "Pa']]),
    (HERMES, "", '<tool_call>{"name": "weather", "arguments": {"city" 1}}</tool_call> x',
     "1}}</tool_call> x", "", [["weather", '{"city" ']]),
    (HERMES, "", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", "", []),
    (HERMES, "", '<tool_call>{"name": "a b", "arguments": {}}',
     '<tool_call>{"name": "a b", "arguments": {}}', "", []),
    (HERMES, "", '<tool_call>{"name": "now", "arguments": "{}"}',
     '<tool_call>{"name": "now", "arguments": "{}"}', "", []),
    (HERMES, "", f"<tool_call>{CALL}", "<tool_call>", "", [WEATHER]),
    (HERMES, "", f'<tool_call>{{"name": "weather", "arguments": {PARIS}', "", "", [WEATHER]),
    (LLAMA, "", f'{{"name": "weather", "parameters": {PARIS}}}', "", "", [WEATHER]),
    (LLAMA, "", f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {PARIS}}}',
     "", "", [WEATHER]),
    (LLAMA, "", f'{{"name": "weather", "parameters": {PARIS}}}; {{"name": "now"}}', "", "",
     [WEATHER, ["now", "{}"]]),
    (LLAMA, "", '{"city": "Paris"}', '{"city": "Paris"}', "", []),
    (LLAMA, "", "<|python_tag|>print(1)", "<|python_tag|>print(1)", "", []),
    (LLAMA, "", 'see {"name": "now"}', 'see {"name": "now"}', "", []),
    (MISTRAL, "", f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}}, '
     '{"name": "now", "arguments": {}}]', "", "", [WEATHER, ["now", "{}"]]),
    (MISTRAL, "", f"So: [TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]now[ARGS]{{}}", "So: ", "",
     [WEATHER, ["now", "{}"]]),
    (MISTRAL, "", f"[TOOL_CALLS]weather{PARIS}", "", "", [WEATHER]),
    (MISTRAL, "", f"[TOOL_CALLS]weather[CALL_ID]x12345678[ARGS]{PARIS}", "", "", [WEATHER]),
    (MISTRAL, "", "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", "", []),
    (DEEPSEEK, "", f"Hm.{BEGIN}{V3 % ('weather', PARIS)}\n{V3 % ('now', '{}')}{END}", "Hm.", "",
     [WEATHER, ["now", "{}"]]),
    (DEEPSEEK, "", f"{BEGIN}{V31 % ('weather', PARIS)}{V31 % ('now', '{}')}{END}", "", "",
     [WEATHER, ["now", "{}"]]),
    (DEEPSEEK, "", f"{BEGIN}{END}", "", "", []),
    (DEEPSEEK, "", f"{BEGIN}what{END}", f"{BEGIN}what{END}", "", []),
    (GLM, "", f"<tool_call>weather\n{CITY}{ARG % ('days', '3')}</tool_call>",
     "", "", [["weather", '{"city": "Pa\\"ris\\n", "days": 3}']]),
    (GLM, "", f"<tool_call>weather\n{ARG % ('any', '[1, 2]')}{ARG % ('new', 'a b')}</tool_call>",
     "", "", [["weather", '{"any": [1, 2], "new": "a b"}']]),
    (GLM, "", "<tool_call>now</tool_call>", "", "", [["now", "{}"]]),
    (GLM, "", "<tool_call>not a name</tool_call>", "<tool_call>not a name</tool_call>", "", []),
    (CODER, "", "Yes\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "Yes\n", "",
     [["weather", '{"city": "Paris\\n", "days": 3}']]),
    (CODER, "", "<tool_call><function=now></function></tool_call>", "", "", [["now", "{}"]]),
    (CODER, "", "<tool_call>now</tool_call>", "<tool_call>now</tool_call>", "", []),
    (HARMONY, "", "<|channel|>analysis<|message|>Hm <b><|end|><|start|>assistant<|channel|>final"
     "<|message|>Hello<|return|>", "Hello", "Hm <b>", []),
    (HARMONY, "", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
     f"to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>", "", "Hm", [WEATHER]),
    (HARMONY, "", " to=functions.weather<|channel|>commentary<|constrain|>json<|message|>"
     f"{PARIS}", "", "", [WEATHER]),
    (HARMONY, "", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
     f"<|channel|>commentary to=functions.weather<|message|>{PARIS}<|call|>", "I look.", "",
     [WEATHER]),
    (HARMONY, "", "no channel", "no channel", "", []),
    (R1, "", f"Hm\n</think>\n\nYes{BEGIN}{V3 % ('now', '{}')}{END}", "\n\nYes", "Hm\n",
     [["now", "{}"]]),
    (R1, "<think>\n", "never ends </thin", "", "never ends </thin", []),
    (R1, "</think>", "Yes", "Yes", "", []),
    (R1, "", "<think>Hm</think>Yes", "Yes", "Hm", []),
    (QWEN, "", "<think>\nHm\n</think>\n\nYes", "\n\nYes", "\nHm\n", []),
    (QWEN, "<think>\n", f"Hm</think>{CALL}", "", "Hm", [WEATHER]),
    (QWEN, "<think>\n\n</think>\n\n", f"Yes{CALL}", "Yes", "", [WEATHER]),
    (QWEN, "", "No <think>x</think>", "No <think>x</think>", "", []),
    (QWEN, "", " <thi", " <thi", "", []),
    (MAGISTRAL, "", "[THINK]Hm[/THINK]Yes[TOOL_CALLS]now[ARGS]{}", "Yes", "Hm", [["now", "{}"]]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].tools}-{case[2][:24]!r}")
def test_table(case: tuple[OutputFormat, str, str, str, str, list[list[str]]]) -> None:
    output, prompt_end, text, content, reasoning, calls = case
    found = read(output, [text], prompt_end)
    assert (found.content, found.reasoning, found.calls) == (content, reasoning, calls)
    # By characters, the finest split there is; and as often as it is read again.
    assert read(output, list(text), prompt_end) == found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_splits(data: st.DataObject) -> None:
    """Pieces of all tables in any order and any split: the events are those of the whole."""
    output = data.draw(
        st.sampled_from([HERMES, LLAMA, MISTRAL, DEEPSEEK, GLM, CODER, HARMONY, R1, QWEN])
    )
    outputs = [case[2] for case in CASES if case[0].tools == output.tools]
    marks = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|start|>", "{", '"', " ", "}"]
    parts = data.draw(st.lists(st.sampled_from(outputs + marks), max_size=5))
    text = "".join(parts)
    cut_first, cut_last = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    text = text[:cut_first] + text[cut_last:]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(output, pieces) == read(output, [text])


@settings(max_examples=100, deadline=None)
@given(text=st.text('<>{}[]"\\tolca_/:,| \n', max_size=80))
def test_noise_is_content(text: str) -> None:
    """Text that holds no call is all there, in its order."""
    for output in (HERMES, LLAMA, MISTRAL, DEEPSEEK, GLM, CODER, HARMONY):
        assert read(output, [text]) == Read(content=text, order="c" if text else "")


def test_ids_depend_on_the_place_alone() -> None:
    text = f"{CALL}{CALL}"
    first, second = read(HERMES, [text]).ids
    assert first != second and first.startswith("call_")
    assert [first, second] == read(HERMES, list(text)).ids
    [short] = read(MISTRAL, ["[TOOL_CALLS]now[ARGS]{}"]).ids
    assert len(short) == 9 and short.isalnum()


@pytest.mark.parametrize("size", [MAX_HELD_CHARS // 2, MAX_HELD_CHARS * 2])
def test_text_that_waits_is_bounded(size: int) -> None:
    """Arguments before their name wait for it, up to a limit; then they are content."""
    text = '<tool_call>{"arguments": {"x": "%s"}, "name": "now"}</tool_call>' % ("y" * size)
    pieces = [text[at : at + 999] for at in range(0, len(text), 999)]
    found = read(HERMES, pieces)
    assert found == read(HERMES, [text])
    assert bool(found.calls) == (size < MAX_HELD_CHARS) != bool(found.content)


def test_streaming_arguments_keep_no_text() -> None:
    parser = machine_of(HERMES)
    parser.feed('<tool_call>{"name": "now", "arguments": {"x": "')
    for _ in range(100):
        assert parser.feed("y" * 9999) == [ArgumentsDelta(0, "y" * 9999)]
        assert not parser._text


def test_calls_are_bounded() -> None:
    text = "[TOOL_CALLS]now[ARGS]{}" * (MAX_CALLS + 2)
    found = read(MISTRAL, [text])
    assert len(found.calls) == MAX_CALLS
    assert found.content == "[TOOL_CALLS]now[ARGS]{}" * 2


def machine_of(output: OutputFormat) -> machine.Machine:
    parser = output.parser("request", 0, TOOLS)
    assert isinstance(parser, machine.Machine)
    return parser
