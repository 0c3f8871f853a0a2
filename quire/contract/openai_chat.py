"""Messages and tools in OpenAI's shape, as mappings: what the SDK and the HTTP API take."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.contract.chat import TOOL_CHOICES, ChatMessage, Tool, ToolCall, check_numbers
from quire.contract.errors import InvalidRequestError

# What an assistant thought, by the names that servers have for it.
_REASONING = ("reasoning_content", "reasoning")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
# Members of a message that would change an answer, and are not read here.
_NOT_READ = {
    "function_call": "it is called tool_calls now",
    "audio": "only text is served here",
}


def parse_messages(value: Any) -> tuple[ChatMessage, ...]:
    """Return the messages of a conversation.

    Args:
        value: a list of mappings. Each has a "role", may have "content" (a text or a list of text
            parts), "refusal", "name", "tool_calls", "tool_call_id", and "reasoning_content" or
            "reasoning". A ChatMessage stays as it is.

    Raises:
        InvalidRequestError: it is none, or has content that is not text; names field and value.
    """
    messages = _list("messages", value)
    check_numbers(len(messages), 0, 0)
    calls = [each.get("tool_calls") for each in messages if isinstance(each, Mapping)]
    check_numbers(0, sum(len(each) for each in calls if isinstance(each, list)), 0)
    return tuple(_message(f"messages[{place}]", each) for place, each in enumerate(messages))


def parse_tools(value: Any, is_flat: bool = False) -> tuple[Tool, ...]:
    """Return tools.

    Args:
        value: a list of {"type": "function", "function": {"name", "description", "parameters",
            "strict"}}, or with these fields beside "type"; None for none. A Tool stays as it is.
        is_flat: errors name fields beside "type" where a tool has none of either kind.

    Raises:
        InvalidRequestError: it is none, or has a tool that is no function.
    """
    if value is None:
        return ()
    tools = _list("tools", value)
    check_numbers(0, 0, len(tools))
    return tuple(_tool(f"tools[{place}]", each, is_flat) for place, each in enumerate(tools))


def parse_tool_choice(value: Any) -> tuple[str, str]:
    """Return one of TOOL_CHOICES, and the name of the tool that has to be called, "" for none.

    Args:
        value: one of TOOL_CHOICES, or {"type": "function", "function": {"name"}}, or with the name
            beside "type"; None for "auto".

    Raises:
        InvalidRequestError: it is neither.
    """
    if value is None:
        return "auto", ""
    if isinstance(value, str) and value in TOOL_CHOICES:
        return value, ""
    if isinstance(value, Mapping):
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, Mapping) else None
        if value.get("type") == "function" and isinstance(name, str) and name:
            return "required", name
    raise InvalidRequestError(
        "tool_choice", f"must be one of {', '.join(TOOL_CHOICES)}, or a function, got {_say(value)}"
    )


def parse_content(field: str, value: Any) -> str | None:
    """Return the text of a content: a text, or the texts of its parts, each on a line of its own.

    Raises:
        InvalidRequestError: it is neither; images, audio and files are not served.
    """
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise InvalidRequestError(field, f"must be a string or a list, got {_say(value)}")
    texts = []
    for place, part in enumerate(value):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT_PARTS:
            texts.append(_text(f"{field}[{place}].text", part.get("text", part.get("refusal"))))
        else:
            raise InvalidRequestError(
                f"{field}[{place}].type", f"must be text, got {_say(kind if kind else part)}"
            )
    return "\n".join(texts)


def _message(field: str, value: Any) -> ChatMessage:
    if isinstance(value, ChatMessage):
        return value
    message = _mapping(field, value)
    role = _text(f"{field}.role", message.get("role"))
    if not role:
        raise InvalidRequestError(f"{field}.role", "must not be empty")
    for name, why in _NOT_READ.items():
        if message.get(name) is not None:
            raise InvalidRequestError(f"{field}.{name}", f"must be absent: {why}")
    calls = message.get("tool_calls") or ()
    thought = next((name for name in _REASONING if message.get(name) is not None), _REASONING[0])
    content = parse_content(f"{field}.content", message.get("content"))
    refusal = _optional_text(f"{field}.refusal", message.get("refusal"))
    if refusal:
        content = "\n".join(filter(None, (content, refusal)))
    return ChatMessage(
        role,
        content,
        _optional_text(f"{field}.name", message.get("name")),
        tuple(
            _call(f"{field}.tool_calls[{place}]", each)
            for place, each in enumerate(_list(f"{field}.tool_calls", calls))
        ),
        _optional_text(f"{field}.tool_call_id", message.get("tool_call_id")),
        _optional_text(f"{field}.{thought}", message.get(thought)),
    )


def _call(field: str, value: Any) -> ToolCall:
    call = _mapping(field, value)
    function = _mapping(f"{field}.function", call.get("function"))
    return ToolCall(
        _text(f"{field}.function.name", function.get("name")),
        _json_text(f"{field}.function.arguments", function.get("arguments") or "", "a JSON text"),
        _optional_text(f"{field}.id", call.get("id")),
    )


def _tool(field: str, value: Any, is_flat: bool) -> Tool:
    if isinstance(value, Tool):
        return value
    tool = _mapping(field, value)
    if tool.get("type") != "function":
        raise InvalidRequestError(
            f"{field}.type", f"must be function, got {_say(tool.get('type'))}"
        )
    if "function" in tool or not (is_flat or "name" in tool):
        field += ".function"
    function = _mapping(field, tool.get("function", tool))
    name = _text(f"{field}.name", function.get("name"))
    if not name:
        raise InvalidRequestError(f"{field}.name", "must not be empty")
    parameters = function.get("parameters")
    return Tool(
        name,
        _optional_text(f"{field}.description", function.get("description")),
        "" if parameters is None else _json_text(f"{field}.parameters", parameters, "an object"),
        _boolean(f"{field}.strict", function.get("strict")),
    )


def _json_text(field: str, value: Any, kind: str) -> str:
    """Return an object as JSON; a text is taken to be that already."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequestError(field, f"must be {kind}, got {_say(value)}")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(field, f"must be JSON, got an error: {error}") from None


def _mapping(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(field, f"must be an object, got {_say(value)}")
    return value


def _list(field: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidRequestError(field, f"must be a list, got {_say(value)}")
    return value


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(field, f"must be a text, got {_say(value)}")
    return value


def _optional_text(field: str, value: Any) -> str:
    return "" if value is None else _text(field, value)


def _boolean(field: str, value: Any) -> bool:
    if not isinstance(value, bool | None):
        raise InvalidRequestError(field, f"must be true or false, got {_say(value)}")
    return bool(value)


def _say(value: Any) -> str:
    """Name a value, without repeating what a client may have put there."""
    if value is None:
        return "none"
    return value[:32] if isinstance(value, str) else type(value).__name__
