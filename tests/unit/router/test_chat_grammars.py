"""What a conversation's answer must be: asked for, forced by tool_choice, after reasoning."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quire.contract.chat import ChatInput, ChatMessage, Tool
from quire.contract.errors import InvalidRequestError, OverloadedError
from quire.contract.sampling_params import SamplingParams
from quire.contract.structured_outputs import StructuredOutputsParams
from router.chat import grammars
from router.chat.grammars import by_its_own_field, by_its_tool, grammar_of
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


def test_a_call_or_what_was_asked_for() -> None:
    """Without tools that may be called it is what was asked for, and a strict tool asks too."""
    hermes = OutputFormat("hermes")
    strict = (Tool("f", is_strict=True), Tool("g"))
    for asked, tools, choice in (
        (JSON, chat().tools, "auto"),
        (None, strict, "auto"),
        (JSON, strict, "auto"),
    ):
        made = grammar_of(replace(chat(asked), tools=tools, tool_choice=choice), hermes, "", {})
        assert made is not None
        assert made.grammar is not None
        assert "<tool_call>" in made.grammar
        assert ("integer" in made.grammar) == (asked is not None)
    for asked, tools, choice in (
        (JSON, strict, "none"),
        (JSON, (), "auto"),
        (None, strict, "none"),
        (None, chat().tools, "auto"),
        (LARK, strict, "auto"),
    ):
        assert (
            grammar_of(replace(chat(asked), tools=tools, tool_choice=choice), hermes, "", {})
            == asked
        )
    assert grammar_of(replace(chat(JSON), tools=strict), OutputFormat(), "", {}) == JSON


def test_one_call_is_forced_where_one_is_wanted() -> None:
    several, single = (
        grammar(chat(tool_choice="required", single_tool_call=each)).grammar
        for each in (False, True)
    )
    assert ")*" in several
    assert ")*" not in single


@pytest.mark.parametrize(
    ("asked", "choice", "field", "expected"),
    [
        (None, "required", "structured_outputs.grammar", "tools"),
        (None, "auto", "structured_outputs.grammar", "tools"),
        (None, "required", "structured_outputs", "tool_choice"),
        (None, "auto", "structured_outputs", "tools"),
        (JSON, "auto", "structured_outputs.grammar", "structured_outputs.json"),
        (LARK, "auto", "structured_outputs.grammar", "structured_outputs.grammar"),
        (JSON, "auto", "structured_outputs", "structured_outputs"),
        (None, "required", "max_tokens", "max_tokens"),
        (JSON, "auto", "max_tokens", "max_tokens"),
    ],
)
def test_an_error_names_what_was_sent(asked, choice, field, expected) -> None:
    made = by_its_own_field(chat(asked, tool_choice=choice), InvalidRequestError(field, "why"))
    assert (made.field, made.description) == (expected, "why")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tool_choice": "required"}, "tools[1].parameters"),
        ({"tool_choice_name": "h"}, "tools[2].parameters"),
        ({"tool_choice_name": "f"}, "tools"),
        ({}, "tools[2].parameters"),
    ],
)
async def test_a_schema_that_is_none_alone_is_named(options: dict[str, Any], field: str) -> None:
    schemas = ("", '{"not": {}}', '{"not": {"type": "null"}}')
    tools = [Tool(n, "", schema, n == "h") for n, schema in zip("fgh", schemas, strict=True)]
    asked = ChatInput([], SamplingParams(), tuple(tools), **options)
    whole = InvalidRequestError("structured_outputs.grammar", "why")

    async def check(grammar: StructuredOutputsParams) -> None:
        if "not" in str(grammar.json):
            raise InvalidRequestError(grammar.field, "this one")

    made = await by_its_tool(asked, whole, check)
    assert (made.field, made.description) == (field, "why" if field == "tools" else "this one")

    async def is_full(grammar: StructuredOutputsParams) -> None:
        raise OverloadedError("full", 1)

    assert (await by_its_tool(asked, whole, is_full)).field == "tools"
    other = InvalidRequestError("max_tokens", "why")
    assert (await by_its_tool(asked, other, check)).field == "max_tokens"


async def test_a_tool_is_looked_for_at_the_cost_of_one_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = tuple(Tool(f"f{place}", "", '{"type": "object"}') for place in range(32))
    asked = ChatInput([], SamplingParams(), tools, tool_choice="required")
    num_tried = 0

    async def check(grammar: StructuredOutputsParams) -> None:
        nonlocal num_tried
        num_tried += 1
        await asyncio.sleep(0.03)

    async def tried(why: str) -> int:
        nonlocal num_tried
        num_tried = 0
        whole = InvalidRequestError("structured_outputs.grammar", why)
        made = await by_its_tool(asked, whole, check)
        assert (made.field, made.description) == ("tools", why)
        return num_tried

    assert await tried("must cost at most 0.5 s of processor time to be tried out") == 0
    monkeypatch.setattr(grammars, "_MAX_TRIED_S", 0.05)
    assert 1 <= await tried("why") <= 2


def test_what_cannot_be_is_refused_by_the_field_that_was_sent() -> None:
    with pytest.raises(InvalidRequestError, match=r"^tool_choice: must be auto or none with"):
        grammar(chat(JSON, tool_choice="required"))
    params = SamplingParams(use_beam_search=True, temperature=0.0, n=2)
    beams = ChatInput([], params, (Tool("f"),), "required")
    with pytest.raises(InvalidRequestError, match=r"^tool_choice: .* absent with use_beam_search"):
        grammar(beams)
    endless = SamplingParams(ignore_eos=True)
    for tool, choice, where in (
        (Tool("f"), "required", "a call is forced"),
        (Tool("f", is_strict=True), "auto", "a tool is strict"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"^ignore_eos: must be false where {where}"):
            grammar_of(ChatInput([], endless, (tool,), choice), OutputFormat("hermes"), "", {})
    large = ChatInput([], SamplingParams(), (Tool("f" * 70_000),), "required")
    with pytest.raises(InvalidRequestError, match=r"^tools: must be at most 65536 characters"):
        grammar(large)
    for parameters in ("{", "5", '{"properties": []}'):
        wrong = ChatInput([], SamplingParams(), (Tool("f", "", parameters),), "required")
        with pytest.raises(InvalidRequestError, match=r"^tools\[0\].parameters: must be"):
            grammar(wrong)
