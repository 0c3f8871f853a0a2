"""From a conversation to the request for text that it is."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire import finite_json
from quire.contract.chat import TOOL_CHOICES, ChatInput
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput
from quire.observe.tracing import child
from router.chat.grammars import grammar_of
from router.chat.parsers.formats import OutputFormat
from router.chat.template import ChatTemplate
from router.requests.time_ledger import Part, TimeLedger
from router.text.tokenize import TextCodec


class ChatPrompts:
    """Makes prompts of conversations.

    Args:
        template: of the model.
        codec: the tokenizer.
        output_format: what the model writes beside plain text.
        template_kwargs: variables for the template that conversations need not bring.
    """

    def __init__(
        self,
        template: ChatTemplate,
        codec: TextCodec,
        output_format: OutputFormat,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._codec = codec
        self._output_format = output_format
        self._template_kwargs = dict(template_kwargs or {})

    async def generate_input(self, chat: ChatInput, ledger: TimeLedger) -> GenerateInput:
        """Return the request whose prompt the conversation is.

        Args:
            chat: as it came.
            ledger: of its time.

        Raises:
            InvalidRequestError: the template refuses it, a field is none that there is, or no
                grammar can be made of what it asks for.
            OverloadedError: too many conversations or texts wait.
        """
        _check_tools(chat)
        if self._template_kwargs:
            chat = replace(chat, chat_template_kwargs=self._with_defaults(chat))
        with ledger.during(Part.TOKENIZE):
            with child("render"):
                text = await self._template.render(chat)
            with child("tokenize"):
                # The template has written them out.
                token_ids = await self._codec.encode(text, add_special_tokens=False)
        grammar = grammar_of(chat, self._output_format, text, self._codec.added_tokens)
        return chat.generate_input(token_ids, grammar)

    def _with_defaults(self, chat: ChatInput) -> str:
        """Return the variables of a conversation, with those that it need not bring."""
        try:
            own = finite_json.loads(chat.chat_template_kwargs or "{}")
        except (ValueError, RecursionError):
            own = None
        # What is no object is refused where it is rendered.
        if not isinstance(own, dict):
            return chat.chat_template_kwargs
        return json.dumps(self._template_kwargs | own)


def _check_tools(chat: ChatInput) -> None:
    choice, name = chat.tool_choice, chat.tool_choice_name
    if choice not in TOOL_CHOICES:
        raise InvalidRequestError(
            "tool_choice", f"must be one of {', '.join(TOOL_CHOICES)}, got {choice[:32]}"
        )
    if name and name not in (tool.name for tool in chat.tools):
        raise InvalidRequestError("tool_choice", f"must name one of the tools, got {name[:64]}")
    if choice == "required" and not chat.tools:
        raise InvalidRequestError("tools", "must be at least 1 with tool_choice required, got 0")
