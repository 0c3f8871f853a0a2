"""Rendering a conversation with a chat template: what transformers' apply_chat_template gives.

Pure, and without any limit of time or memory: jinja2's sandbox keeps a template from the system,
not from computing for ever. See router.chat.template for what does.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from quire import finite_json
from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError
from router.chat.template_losses import check_losses
from router.chat.template_values import Absent, Arguments, add_tests

# Stands behind the text that is to be continued, until the template has been rendered. The space
# tells whether the template keeps the end of a message as it is.
_MARK = "QUIRE_CONTINUES_HERE "
_MAX_ERROR_CHARS = 200
_DEVELOPER = "developer"


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant said, for training: here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _PlainNamespace(Namespace):
    """A namespace without the names that lead to the interpreter."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace: {name} is no name for a template")
        super().__setitem__(name, value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, this escapes nothing for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def make_environment() -> jinja2.Environment:
    """Return what chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    add_tests(environment)
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, namespace=_PlainNamespace)
    return environment


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return make_environment().from_string(source)


def check_syntax(source: str) -> str | None:
    """Return what is wrong with a template's syntax, None for nothing. Evaluates nothing of it."""
    try:
        make_environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def render(
    source: str, special_tokens: Mapping[str, Any], conversation: Mapping[str, Any], max_bytes: int
) -> str:
    """Return the prompt of a conversation.

    Args:
        source: of the template.
        special_tokens: variables such as bos_token.
        conversation: `messages`, `tools` (as ChatMessage and Tool, in mappings),
            `chat_template_kwargs` (JSON text), `add_generation_prompt`, `continue_final_message`,
            and `now`, in seconds since the epoch.
        max_bytes: longest prompt, in bytes of UTF-8.

    Raises:
        InvalidRequestError: the template refuses the conversation, or cannot be used at all.
    """
    messages = [
        _message_variables(f"messages[{number}]", message)
        for number, message in enumerate(conversation["messages"])
    ]
    if not any(quote + _DEVELOPER + quote in source for quote in "'\""):
        messages = _without_developers(messages)
    kwargs = conversation["chat_template_kwargs"]
    continues = conversation["continue_final_message"]
    if continues:
        messages[-1] = _marked(messages[-1])
    try:
        now = datetime.fromtimestamp(conversation["now"])
    except (ValueError, OverflowError, OSError):
        raise InvalidRequestError("now", "must be a time in the years 1 to 9999") from None
    variables: dict[str, Any] = {
        **special_tokens,
        "strftime_now": now.strftime,
        **(_object("chat_template_kwargs", kwargs) if kwargs else {}),
        "messages": messages,
        "tools": [
            _tool_variables(f"tools[{number}]", tool)
            for number, tool in enumerate(conversation["tools"])
        ]
        or None,
        "documents": None,
        "add_generation_prompt": conversation["add_generation_prompt"] and not continues,
    }
    text = _text(source, variables, max_bytes)
    check_losses(
        source,
        text,
        messages,
        lambda others: _text(source, {**variables, "messages": others}, max_bytes),
    )
    if continues:
        text = _until_mark(text)
    if len(text.encode()) > max_bytes:
        raise _too_long(max_bytes)
    return text


def render_chat(
    source: str, special_tokens: Mapping[str, Any], chat: ChatInput, max_bytes: int = 2**24
) -> str:
    """Return the prompt of a chat, rendered in this process; raises as `render`.

    Only for a template that this process's user has written: nothing ends it.
    """
    return render(source, special_tokens, as_json(chat), max_bytes)


def as_json(chat: ChatInput) -> dict[str, Any]:
    """Return what `render` needs of a chat, as JSON."""
    tools = chat.tools if chat.tool_choice != "none" else ()
    return {
        "messages": [
            {**_fields(each), "tool_calls": [_fields(call) for call in each.tool_calls]}
            for each in chat.messages
        ],
        "tools": [_fields(each) for each in tools],
        "chat_template_kwargs": chat.chat_template_kwargs,
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
        "now": time.time() if chat.now is None else chat.now,
    }


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _text(source: str, variables: Mapping[str, Any], max_bytes: int) -> str:
    pieces: list[str] = []
    num_bytes = 0
    try:
        for piece in _compiled(source).generate(variables):
            pieces.append(piece)
            num_bytes += len(piece.encode())
            if num_bytes > max_bytes + len(_MARK):
                break
    except MemoryError:
        raise
    except Exception as error:
        # A template raises whatever its expressions do; all of it means the same to the client.
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0]
        raise InvalidRequestError(
            "messages", f"must be what the chat template takes, got {reason[:_MAX_ERROR_CHARS]}"
        ) from error
    if num_bytes > max_bytes + len(_MARK):
        raise _too_long(max_bytes)
    return "".join(pieces)


def _too_long(max_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        "messages", f"must be at most {max_bytes} bytes as the prompt of the chat template"
    )


def _message_variables(field: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the shape that templates read: absent fields are undefined."""
    content = Absent() if message["content"] is None else message["content"]
    variables = {"role": message["role"], "content": content}
    variables |= {key: message[key] for key in ("name", "tool_call_id") if message[key]}
    if message["tool_calls"]:
        variables["tool_calls"] = [
            {
                **({"id": call["id"]} if call["id"] else {}),
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": _arguments(
                        f"{field}.tool_calls[{number}].arguments", call["arguments"]
                    ),
                },
            }
            for number, call in enumerate(message["tool_calls"])
        ]
    if message["reasoning"]:
        # By each of the names that templates know it.
        names = ("reasoning_content", "reasoning", "thinking")
        variables |= dict.fromkeys(names, message["reasoning"])
    return variables


def _without_developers(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose developers are the system, and go on where that has spoken before.

    Most templates know one message of the system, and no developer.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != _DEVELOPER:
            merged.append(message)
        elif merged and merged[-1]["role"] == "system":
            texts = (merged[-1]["content"], message["content"])
            merged[-1] = {**merged[-1], "content": "\n\n".join(filter(None, texts))}
        else:
            merged.append({**message, "role": "system"})
    return merged


def _arguments(field: str, text: str) -> Arguments:
    try:
        return Arguments(text)
    except RecursionError:
        raise InvalidRequestError(field, "must not be nested that deeply") from None


def _tool_variables(field: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool["name"]}
    if tool["description"]:
        function["description"] = tool["description"]
    if tool["parameters"]:
        function["parameters"] = _object(f"{field}.parameters", tool["parameters"])
    return {"type": "function", "function": function}


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value = finite_json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise InvalidRequestError(field, "must not be nested that deeply") from None
    except UnicodeEncodeError:
        reason = "must be Unicode text, got half of a surrogate pair"
        raise InvalidRequestError(field, reason) from None
    except ValueError as error:
        raise InvalidRequestError(field, f"must be JSON, got an error: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(field, f"must be a JSON object, got {type(value).__name__}")
    return value


def _marked(message: Mapping[str, Any]) -> dict[str, Any]:
    if not message["content"]:
        raise InvalidRequestError(
            "continue_final_message", "needs a last message with content, got one without"
        )
    return {**message, "content": message["content"] + _MARK}


def _until_mark(text: str) -> str:
    place = text.rfind(_MARK.strip())
    if place < 0:
        raise InvalidRequestError(
            "continue_final_message",
            "must be false, since the chat template leaves out the end of the last message",
        )
    keeps_end = text[place:].startswith(_MARK)
    return text[:place] if keeps_end else text[:place].rstrip()
