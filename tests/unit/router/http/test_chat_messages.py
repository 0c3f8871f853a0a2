"""What the texts of a chat are in its message, and when they are read."""

from dataclasses import replace
from typing import Any

import pytest

from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.outputs import Delta, Finished, FinishReason, Started
from router.chat.parsers.events import ParserEvent
from router.chat.parsers.formats import OutputFormat
from router.chat.reader import OutputReader, with_special_tokens
from router.http.chat.answers import WholeChat
from router.http.chat.choices import ChatChoices, Part
from router.http.chat.messages import Messages
from router.http.chat.request import read_request
from router.http.fields import Fields
from router.requests.slices import in_slices

TEXTS = {5: "Yes", 7: "<|im_end|>"}
CHAT = ChatInput((ChatMessage("user", "x"),), SamplingParams(), (Tool("f"),))


@pytest.mark.parametrize(("ignore_eos", "tail"), [(False, ""), (False, "<|im_end|>"), (True, "")])
def test_the_last_token_is_no_content(ignore_eos: bool, tail: str) -> None:
    params = SamplingParams(ignore_eos=ignore_eos, include_stop_str_in_output=True)
    chat = replace(CHAT, sampling_params=params)
    messages = Messages(OutputReader(OutputFormat("hermes"), chat, TEXTS.__getitem__, (7,)))
    # A text may wait for the next one, in case that both are a stop string.
    parts = [
        Part(0, is_first=True),
        Part(0, "Yes", (5,)),
        Part(0, "" if tail else "<|im_end|>", (7,)),
        Part(0, tail, end=Finished(FinishReason.STOP, 2)),
    ]
    content = "Yes<|im_end|>" if ignore_eos else "Yes"
    for part in parts:
        messages.take(part)
    assert messages.message(0) == {"role": "assistant", "content": content}


async def test_a_whole_chat_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on between its tokens; at its end nothing is left to be read."""
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "n": 2}
    request, choices = read_request(Fields(body)), ChatChoices(2)
    reader = OutputReader(OutputFormat("hermes"), request.chat, str, ())
    answer = WholeChat({}, request, choices, Messages(reader))
    num_read: list[int] = []
    read = OutputReader.read

    def spy(reader: OutputReader, *args: Any) -> list[ParserEvent]:
        num_read[-1] += 1
        return read(reader, *args)

    monkeypatch.setattr(OutputReader, "read", spy)
    texts = ("a", '<tool_call>{"name": "f"}', "</tool_call>")
    whole = [Delta("".join(texts), (5, 6, 7), (), index, (), texts) for index in (1, 0)]
    ends = [Finished(FinishReason.STOP, 3, index=index) for index in (0, 1)]
    for event in (Started("id", 9, 1), *(e for each in whole for e in in_slices(each, 1)), *ends):
        num_read.append(0)
        await answer.take(list(choices.take(event)))
    num_read.append(0)
    content = answer.content()
    assert num_read == [0, *[1] * 8, 0]
    for choice in content["choices"]:
        assert choice["message"]["content"] == "a"
        assert choice["finish_reason"] == "tool_calls"
        assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["f"]


def test_special_tokens_are_shown_only_to_parsers() -> None:
    for output, chat, is_skipped in (
        (OutputFormat("hermes"), CHAT, False),
        (OutputFormat("hermes"), replace(CHAT, tools=()), True),
        (OutputFormat("hermes"), replace(CHAT, tool_choice="none"), True),
        (OutputFormat("none", "qwen3"), replace(CHAT, tools=()), False),
        (OutputFormat(), CHAT, True),
        (OutputFormat(), replace(CHAT, tool_choice="required"), False),
    ):
        assert with_special_tokens(chat, output).sampling_params.skip_special_tokens is is_skipped
