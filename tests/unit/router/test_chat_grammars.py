"""What a conversation's answer must be: asked for, forced by tool_choice, after reasoning."""

from typing import Any

import pytest

from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.errors import InvalidRequestError
from quire.contract.sampling_params import SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams
from router.chat.grammars import grammar_of
from router.chat.parsers.formats import OutputFormat

JSON = StructuredOutputsParams(json={"type": "integer"})
LARK = StructuredOutputsParams(grammar='start: "a"')
THINKING = "<think>\n"


def chat(grammar: StructuredOutputsParams | None = None, **options: Any) -> ChatInput:
    params = SamplingParams(structured_outputs=grammar)
    return ChatInput([ChatMessage("user", "hi")], params, (Tool("f"), Tool("g")), **options)


def grammar(asked: ChatInput, reasoning: str = "none", prompt: str = "") -> Any:
    return grammar_of(asked, OutputFormat("none", reasoning), prompt, {})


def test_what_was_asked_for_is_the_whole_answer() -> None:
    assert grammar(chat()) is None
    assert grammar(chat(), "qwen3", THINKING) is None
    assert grammar(chat(JSON)) == JSON
    assert grammar(chat(JSON), "qwen3", "<think>\n\n</think>\n") == JSON
    assert grammar(chat(LARK), "qwen3", THINKING) == LARK


def test_after_reasoning_comes_what_was_asked_for() -> None:
    made = grammar(chat(JSON), "qwen3", THINKING)
    assert "</think>" in made.grammar
    assert "%json" in made.grammar
    # Channels come before every answer of this format.
    assert "final" in grammar(chat(JSON), "openai_gptoss").grammar


def test_a_forced_call_is_the_whole_answer() -> None:
    # A model without a format of its own gets one that is parsed again.
    required = grammar(chat(tool_choice="required")).grammar
    assert '"f"' in required
    assert '"g"' in required
    named = grammar(chat(tool_choice_name="g")).grammar
    assert '"f"' not in named
    assert OutputFormat().of(chat(tool_choice_name="g")).parser("id", 0, chat().tools) is not None
    assert OutputFormat().of(chat()).parser("id", 0, chat().tools) is None


def test_what_cannot_be_is_refused_by_the_field_that_was_sent() -> None:
    with pytest.raises(InvalidRequestError, match=r"^tool_choice: must be auto or none with"):
        grammar(chat(JSON, tool_choice="required"))
    params = SamplingParams(use_beam_search=True, temperature=0.0, n=2)
    beams = ChatInput([], params, (Tool("f"),), "required")
    with pytest.raises(InvalidRequestError, match=r"^tool_choice: .* absent with use_beam_search"):
        grammar(beams)
    large = ChatInput([], SamplingParams(), (Tool("f" * 70_000),), "required")
    with pytest.raises(InvalidRequestError, match=r"^tool_choice: .* at most 65536 characters"):
        grammar(large)
    for parameters in ("{", "5", '{"properties": []}'):
        wrong = ChatInput([], SamplingParams(), (Tool("f", "", parameters),), "required")
        with pytest.raises(InvalidRequestError, match=r"^tools.f.parameters: must be"):
            grammar(wrong)
