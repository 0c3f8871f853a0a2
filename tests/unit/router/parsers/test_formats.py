"""What every split of the table's outputs gives."""

from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
from tests.output_formats import (
    CALL,
    CASES,
    CODER,
    DEEPSEEK,
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    QWEN,
    R1,
    TOOLS,
)


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].tools}-{case[2][:24]!r}")
def test_table(case: tuple[OutputFormat, str, str, str, str, list[list[str]]]) -> None:
    output, prompt_end, text, content, reasoning, calls = case
    found = read(output, [text], prompt_end)
    assert (found.content, found.reasoning, found.calls) == (content, reasoning, calls)
    # By characters, the finest split there is; and as often as it is read again.
    assert read(output, list(text), prompt_end) == found


@settings(max_examples=150)
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


@settings(max_examples=100)
@given(text=st.text('<>{}[]"\\tolca_/:,| \n', max_size=80))
def test_noise_is_content(text: str) -> None:
    """Text that holds no call, nor begins one, is all there, in its order."""
    assume("<tool_call>" not in text)
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
