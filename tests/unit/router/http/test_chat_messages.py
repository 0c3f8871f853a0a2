"""What the end of an output adds to a message: not the token that says so."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from quire import SamplingParams
from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.outputs import Finished
from router.chat.parsers.formats import OutputFormat
from router.chat.reader import OutputReader, with_special_tokens
from router.http.chat.choices import Part
from router.http.chat.messages import Messages

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
        Part(0, tail, end=cast(Finished, SimpleNamespace())),
    ]
    content = "Yes<|im_end|>" if ignore_eos else "Yes"
    assert messages.message(parts) == {"role": "assistant", "content": content}


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
