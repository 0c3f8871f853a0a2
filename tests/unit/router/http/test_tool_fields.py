"""What each API says of its tools' calls: of their schema, and how many there may be."""

from collections.abc import Callable
from typing import Any

import pytest

from quire.contract.chat import ChatInput
from quire.contract.errors import InvalidRequestError
from quire.sdk.calls import chat_input
from router.http.chat import request as chat
from router.http.fields import Fields
from router.http.messages import request as messages
from router.http.responses import request as responses

USER = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}


def of_chat(tool: dict[str, Any], **body: Any) -> ChatInput:
    tools = [{"type": "function", "function": {**FUNCTION, **tool}}]
    return chat.read_request(Fields({"messages": USER, "tools": tools, **body})).chat


def of_response(tool: dict[str, Any], **body: Any) -> ChatInput:
    tools = [{"type": "function", **FUNCTION, **tool}]
    return responses.read_request(Fields({"input": "x", "tools": tools, **body}), "id").chat


def of_message(tool: dict[str, Any], **body: Any) -> ChatInput:
    choice = {"type": "auto"}
    if (parallel := body.pop("parallel_tool_calls", None)) is not None:
        choice["disable_parallel_tool_use"] = (
            not parallel if parallel in (True, False) else parallel
        )
    tools = [{"name": "f", "input_schema": {"type": "object"}, **tool}]
    asked = {"messages": USER, "max_tokens": 1, "tools": tools, "tool_choice": choice}
    return messages.read_request(Fields(asked)).chat


def of_sdk(tool: dict[str, Any], **options: Any) -> ChatInput:
    return chat_input(USER, None, {"tools": [{"type": "function", **FUNCTION, **tool}], **options})


HTTP = [of_chat, of_response, of_message]


@pytest.mark.parametrize("read", [*HTTP, of_sdk])
def test_a_tool_may_be_strict_and_calls_single(read: Callable[..., ChatInput]) -> None:
    for strict in (None, False, True):
        made = read({} if strict is None else {"strict": strict})
        assert [tool.is_strict for tool in made.tools] == [bool(strict)]
        assert not made.single_tool_call
    for parallel in (True, False):
        assert read({}, parallel_tool_calls=parallel).single_tool_call == (not parallel)


@pytest.mark.parametrize("read", HTTP)
def test_what_is_no_switch_is_refused(read: Callable[..., ChatInput]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^tools\[0\].*strict: must be true or false"):
        read({"strict": "yes"})
    with pytest.raises(InvalidRequestError, match=r"parallel_tool_\w+: must be true or false"):
        read({}, parallel_tool_calls="no")
