"""The grammar of a conversation's answer: a call, what was asked for, or either of them."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError, QuireError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import as_lark
from router.chat.parsers.forced import (
    answer_after_reasoning,
    call_or_answer,
    field_of,
    forced_call,
    schema_of,
)
from router.chat.parsers.formats import HARMONY_REASONING, NONE, OutputFormat
from router.text.grammars import COSTLY, MAX_CPU_S

# Of a prompt: they show whether it ends within reasoning.
_NUM_LAST_CHARS = 1024
# What a chat becomes whose grammar is made here.
_MADE = StructuredOutputsParams(grammar="start:")
# Schemas that are tried one by one where all of them together are no grammar, and for how long:
# the processes that try them are for all callers.
_MAX_TRIED = 32
_MAX_TRIED_S = MAX_CPU_S


def grammar_of(
    chat: ChatInput, output: OutputFormat, prompt: str, added_tokens: Mapping[str, int]
) -> StructuredOutputsParams | None:
    """Return the grammar of a chat's outputs; None for any text.

    Args:
        chat: whose tool_choice is one that there is.
        output: the model's format.
        prompt: the rendered conversation.
        added_tokens: ids of the tokenizer's added tokens, special or not, by their text.

    Raises:
        InvalidRequestError: a call is forced of a tool whose parameters are no JSON object, beside
            another grammar, beside what grammars are refused with, or the grammar is too large.
    """
    asked = chat.sampling_params.structured_outputs
    is_reasoning = output.begins_within_reasoning(prompt[-_NUM_LAST_CHARS:])
    if chat.forces_call:
        if asked is not None:
            raise InvalidRequestError("tool_choice", "must be auto or none with structured_outputs")
        grammar = forced_call(
            *(output.of(chat), chat.tools, chat.tool_choice_name, added_tokens, is_reasoning),
            is_single=chat.single_tool_call,
        )
        return _checked(chat, "tool_choice", grammar)
    # What a client means is the answer; its own Lark grammar is that of all the text.
    answer = None if asked is None else as_lark(asked)
    if asked is not None and answer is None:
        return asked
    may_call = bool(chat.tools) and chat.tool_choice != "none" and output.tools != NONE
    if may_call and (answer is not None or any(tool.is_strict for tool in chat.tools)):
        grammar = call_or_answer(
            *(output, chat.tools, answer, added_tokens, is_reasoning, chat.single_tool_call)
        )
        return _checked(chat, "tools" if asked is None else asked.field, grammar)
    if asked is None or answer is None:
        return None
    if not is_reasoning and output.reasoning != HARMONY_REASONING:
        return asked
    grammar = answer_after_reasoning(output, answer, added_tokens)
    return _checked(chat, asked.field, grammar)


def by_its_own_field(chat: ChatInput, error: InvalidRequestError) -> InvalidRequestError:
    """Return an error of a grammar that was made of a chat, by the field that asked for it.

    Args:
        chat: as it was sent.
        error: of the request that it became.
    """
    asked = chat.sampling_params.structured_outputs
    if asked is not None:
        field = asked.field if error.field == _MADE.field else error.field
    elif error.field == "structured_outputs":
        field = "tool_choice" if chat.forces_call else "tools"
    else:
        field = "tools" if error.field == _MADE.field else error.field
    return error.renamed(field)


async def by_its_tool(
    chat: ChatInput,
    error: InvalidRequestError,
    check: Callable[[StructuredOutputsParams], Awaitable[None]],
) -> InvalidRequestError:
    """Return an error of a grammar by the tool whose schema is none alone, or its own field.

    No tool is looked for where a grammar costs too much, and none for longer than one may cost.

    Args:
        chat: as it was sent.
        error: of the request that it became.
        check: raises InvalidRequestError where a grammar cannot be obeyed.
    """
    if error.field == _MADE.field and not error.description.startswith(COSTLY):
        until = asyncio.get_running_loop().time() + _MAX_TRIED_S
        held = [
            (place, tool)
            for place, tool in enumerate(chat.tools)
            if (chat.tool_choice_name in ("", tool.name) if chat.forces_call else tool.is_strict)
        ]
        for place, tool in held[:_MAX_TRIED]:
            if asyncio.get_running_loop().time() >= until:
                break
            try:
                schema = json.dumps(schema_of(place, tool), ensure_ascii=False)
                await check(StructuredOutputsParams(json=schema))
            except InvalidRequestError as alone:
                return alone.renamed(field_of(place))
            except QuireError:
                break  # too much is being checked to find it
    return by_its_own_field(chat, error)


def _checked(chat: ChatInput, field: str, grammar: str) -> StructuredOutputsParams:
    """Return a grammar that is no larger than one may be; errors name what it was made of."""
    try:
        made = StructuredOutputsParams(grammar=grammar)
        replace(chat.sampling_params, structured_outputs=made)
    except InvalidRequestError as error:
        if error.field == "ignore_eos":
            where = "a call is forced" if chat.forces_call else "a tool is strict"
            raise InvalidRequestError("ignore_eos", f"must be false where {where}") from None
        raise InvalidRequestError(field, f"{error.field}: {error.description}") from None
    return made
