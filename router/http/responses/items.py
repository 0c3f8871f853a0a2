"""The items of a response's input, as the messages of a conversation."""

import re
from collections.abc import Mapping
from typing import Any

from quire.contract.chat import ChatMessage
from quire.contract.errors import InvalidRequestError
from quire.contract.openai_chat import parse_content, parse_messages
from router.http.bodies import kind_of
from router.http.fields import Fields

# Members of a chat's messages that would change an answer, and what they are here.
_NOT_READ = {
    "tool_calls": "each call is an item function_call here",
    "function_call": "each call is an item function_call here",
    "tool_call_id": "what a tool returns is an item function_call_output here",
    "refusal": "it is a part of content here",
    "reasoning_content": "it is an item reasoning here",
    "reasoning": "it is an item reasoning here",
    "audio": "only text is served here",
}
# Those of what a tool returns in a chat.
_TOOL_ROLES = ("tool", "function")
# What errors call a message.
_MESSAGE = re.compile(r"messages\[(\d+)\]")


def read_input(body: Fields) -> tuple[ChatMessage, ...]:
    """Return the messages of `input` and `instructions`.

    Raises:
        InvalidRequestError: an item is of another kind than messages, function calls, their outputs
            and reasoning.
    """
    value = body.value("input")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise body.refuse("input", f"must be a string or an array, got {kind_of(value)}")
    if not value and "instructions" not in body:
        raise body.refuse("input", "must be at least 1 item, got 0")
    messages: list[dict[str, Any]] = []
    # Of each message, where it began.
    fields: list[str] = []
    if instructions := body.text("instructions"):
        messages.append({"role": "system", "content": instructions})
        fields.append("instructions")
    for place, item in enumerate(value):
        field = f"input[{place}]"
        if not isinstance(item, dict):
            raise InvalidRequestError(field, f"must be an object, got {kind_of(item)}")
        _add(messages, field, item)
        fields += [field] * (len(messages) - len(fields))
    try:
        return parse_messages(messages)
    except InvalidRequestError as error:
        found = _MESSAGE.match(error.field)
        if found is None:  # of how many there are
            raise error.renamed("input") from None
        field = fields[int(found[1])] + error.field[found.end() :]
        raise InvalidRequestError(field, error.description) from None


def _add(messages: list[dict[str, Any]], field: str, item: Mapping[str, Any]) -> None:
    """Add an item to the messages: what an assistant thinks, says and calls is one of them."""
    fields = Fields(item, f"{field}.")
    match item.get("type", "message"):
        case "message":
            role = fields.given_text("role")
            if role in _TOOL_ROLES:
                raise fields.refuse(
                    "role", f"must not be {role}: that is an item function_call_output here"
                )
            for name, why in _NOT_READ.items():
                if fields.value(name) not in (None, "", []):
                    raise fields.refuse(name, f"must be absent: {why}")
            content = _content(fields, "content")
            if role == "assistant":
                message = _assistant(messages, without="content")
                message["content"] = content
            else:
                messages.append({"role": role, "content": content})
        case "function_call":
            name = fields.given_text("name")
            if not name:
                raise fields.refuse("name", "must not be empty")
            function = {"name": name, "arguments": fields.given_text("arguments")}
            call = {"id": fields.given_text("call_id"), "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            call_id, content = fields.given_text("call_id"), _content(fields, "output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        case "reasoning":
            messages.append({"role": "assistant", "reasoning_content": _reasoning(field, item)})
        case kind:
            got = kind[:32] if isinstance(kind, str) else kind_of(kind)
            raise InvalidRequestError(
                f"{field}.type",
                "must be message, function_call, function_call_output or reasoning, got " + got,
            )


def _content(fields: Fields, name: str) -> str | None:
    if name not in fields:
        raise fields.refuse(name, "must be a string or an array of parts, got none")
    return parse_content(fields.path(name), fields.value(name))


def _reasoning(field: str, item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item: that of its content, or of its summary."""
    fields = Fields(item, f"{field}.")
    name = "content" if item.get("content") else "summary"
    texts = []
    for place, part in enumerate(fields.items(name)):
        if not isinstance(part, dict):
            raise fields.refuse(f"{name}[{place}]", f"must be an object, got {kind_of(part)}")
        texts.append(Fields(part, f"{field}.{name}[{place}].").text("text"))
    return "".join(texts)


def _assistant(messages: list[dict[str, Any]], without: str = "") -> dict[str, Any]:
    """Return the assistant's message at the end, or a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or (without and last.keys() & {without, "tool_calls"}):
        messages.append({"role": "assistant"})
    return messages[-1]
