"""The messages of Anthropic's API and their content blocks, as those of a conversation."""

import json
from dataclasses import dataclass, field
from typing import Any

from quire.contract.chat import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatMessage,
    Tool,
    ToolCall,
    check_numbers,
)
from quire.contract.openai_chat import parse_content
from router.http.bodies import kind_of
from router.http.fields import Fields

_ROLES = ("user", "assistant", "system")
_KINDS = {
    "user": "text or tool_result",
    "assistant": "text, thinking or tool_use",
    "system": "text",
}
_MAX_TOLD_CHARS = 32
# With which the result of a tool that failed begins, for a model to see it.
_FAILED = "Error"


@dataclass(slots=True)
class _Turn:
    """What one side writes, until the other does.

    Attributes:
        role: of the side; "tool" for a result.
        texts: of each of its messages, those of its blocks.
        thoughts: what it thought, in pieces.
        calls: of tools.
        call_id: that a result answers.
    """

    role: str
    texts: list[list[str]] = field(default_factory=lambda: [[]])
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str = ""

    def message(self) -> ChatMessage:
        texts = ["\n".join(each) for each in self.texts if each]
        content = "\n\n".join(texts) if texts or self.role != "assistant" else None
        reasoning, calls = "".join(self.thoughts), tuple(self.calls)
        return ChatMessage(self.role, content, "", calls, self.call_id, reasoning)


class _Turns:
    """Takes messages one after the other."""

    def __init__(self) -> None:
        self.all: list[_Turn] = []
        self._num_calls = 0

    def system(self, value: Any) -> None:
        self._add(_Turn("system", [[parse_content("system", value) or ""]]))

    def take(self, message: Fields) -> None:
        role, content = message.text("role"), message.value("content")
        if role not in _ROLES:
            got = role[:_MAX_TOLD_CHARS] or "none"
            raise message.refuse("role", f"must be one of {', '.join(_ROLES)}, got {got}")
        if self._goes_on(role):
            self.all[-1].texts.append([])
        if isinstance(content, str):
            self._turn(role).texts[-1].append(content)
            return
        if not isinstance(content, list) or not content:
            got = kind_of(content) if content else "none"
            raise message.refuse("content", f"must be a string or an array of blocks, got {got}")
        for place, item in enumerate(message.items("content")):
            self._take_block(role, _object(message, f"content[{place}]", item))

    def _take_block(self, role: str, block: Fields) -> None:
        is_assistant = role == "assistant"
        match block.text("type"):
            case "text":
                self._turn(role).texts[-1].append(block.given_text("text"))
            case "tool_result" if role == "user":
                call_id = block.given_text("tool_use_id")
                self._add(_Turn("tool", [[_result(block)]], call_id=call_id))
            case "tool_use" if is_assistant:
                if "input" not in block:
                    raise block.refuse("input", "must be an object, got none")
                arguments = json.dumps(block.mapping("input"), ensure_ascii=False)
                call = ToolCall(_named(block), arguments, block.given_text("id"))
                self._turn(role).calls.append(call)
                self._num_calls += 1
                check_numbers(0, self._num_calls, 0)
            case "thinking" if is_assistant:
                self._turn(role).thoughts.append(block.given_text("thinking"))
            case "redacted_thinking" if is_assistant:
                block.given_text("data")
                self._turn(role)  # who did not write it cannot read it
            case kind:
                got = kind[:_MAX_TOLD_CHARS] or "none"
                raise block.refuse("type", f"must be {_KINDS[role]} of the {role}, got {got}")

    def _goes_on(self, role: str) -> bool:
        return bool(self.all) and self.all[-1].role == role != "system"

    def _turn(self, role: str) -> _Turn:
        """Return the turn of a side, which may go on."""
        return self.all[-1] if self._goes_on(role) else self._add(_Turn(role))

    def _add(self, turn: _Turn) -> _Turn:
        self.all.append(turn)
        check_numbers(len(self.all), 0, 0)
        return turn


def read_messages(body: Fields) -> tuple[ChatMessage, ...]:
    """Return the messages of `system` and `messages`.

    Messages of one side that follow each other are one, as the API has it; the result of a tool is
    a message of its own.

    Raises:
        InvalidRequestError: a block is of another kind than text, calls of tools, their results and
            thinking; names field and kind.
    """
    turns = _Turns()
    if "system" in body:
        turns.system(body.value("system"))
    for place, item in enumerate(body.items("messages", MAX_MESSAGES)):
        turns.take(_object(body, f"messages[{place}]", item))
    return tuple(turn.message() for turn in turns.all)


def read_tools(body: Fields) -> tuple[Tool, ...]:
    """Return `tools`.

    Raises:
        InvalidRequestError: one is malformed, or of those that Anthropic runs or has the schemas
            of.
    """
    return tuple(
        _tool(_object(body, f"tools[{place}]", item))
        for place, item in enumerate(body.items("tools", MAX_TOOLS))
    )


def read_tool_choice(body: Fields) -> tuple[str, str]:
    """Return `tool_choice` as ChatInput has it: the choice, and the name of the tool.

    Raises:
        InvalidRequestError: it is of another kind than auto, any, tool and none.
    """
    choice = body.fields("tool_choice")
    choice.boolean("disable_parallel_tool_use")  # of a wrong type, it is what is wrong
    match choice.text("type", "auto" if not choice.names() else ""):
        case "auto":
            return "auto", ""
        case "none":
            return "none", ""
        case "any":
            return "required", ""
        case "tool":
            return "required", _named(choice)
        case kind:
            got = kind[:_MAX_TOLD_CHARS] or "none"
            raise choice.refuse("type", f"must be auto, any, tool or none, got {got}")


def _tool(tool: Fields) -> Tool:
    kind = tool.text("type", "custom")
    if kind != "custom":
        raise tool.refuse(
            "type",
            f"must be custom: no tool is run here, and no schema is known, "
            f"got {kind[:_MAX_TOLD_CHARS]}",
        )
    if "input_schema" not in tool:
        raise tool.refuse("input_schema", "must be the JSON schema of an object, got none")
    schema = json.dumps(tool.mapping("input_schema"), ensure_ascii=False)
    return Tool(_named(tool), tool.text("description"), schema, tool.boolean("strict"))


def _result(block: Fields) -> str:
    """Return what a tool gave; that of one which failed says so."""
    content = parse_content(block.path("content"), block.value("content")) or ""
    if not block.boolean("is_error") or content.startswith(f"{_FAILED}:"):
        return content
    return f"{_FAILED}: {content}" if content else _FAILED


def _named(fields: Fields) -> str:
    name = fields.given_text("name")
    if not name:
        raise fields.refuse("name", "must not be empty")
    return name


def _object(parent: Fields, field: str, value: Any) -> Fields:
    if not isinstance(value, dict):
        raise parent.refuse(field, f"must be an object, got {kind_of(value)}")
    return Fields(value, f"{parent.path(field)}.")
