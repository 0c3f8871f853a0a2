"""The grammar of what a conversation is answered with: a forced call, or what follows reasoning."""

from collections.abc import Mapping
from dataclasses import replace

from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.grammar import as_lark
from router.chat.parsers.forced import answer_after_reasoning, forced_call
from router.chat.parsers.formats import HARMONY_REASONING, OutputFormat

# Of a prompt: they show whether it ends within reasoning.
_NUM_LAST_CHARS = 1024


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
            *(output.of(chat), chat.tools, chat.tool_choice_name, added_tokens, is_reasoning)
        )
        return _checked(chat, "tool_choice", grammar)
    if asked is None or not (is_reasoning or output.reasoning == HARMONY_REASONING):
        return asked
    # What a client means is the answer; its own Lark grammar is that of all the text.
    answer = as_lark(asked)
    if answer is None:
        return asked
    grammar = answer_after_reasoning(output, answer, added_tokens)
    return _checked(chat, asked.field, grammar)


def _checked(chat: ChatInput, field: str, grammar: str) -> StructuredOutputsParams:
    """Return a grammar that is no larger than one may be; errors name what it was made of."""
    try:
        made = StructuredOutputsParams(grammar=grammar)
        replace(chat.sampling_params, structured_outputs=made)
    except InvalidRequestError as error:
        raise InvalidRequestError(field, f"{error.field}: {error.description}") from None
    return made
