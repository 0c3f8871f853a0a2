"""What the events of a stream add up to, API by API: the object that a client without it gets."""

import json
from typing import Any

from router.http.messages.answers import INVALID_JSON
from tests.rpc.http_setup import Sent


def chat_sum(events: list[Sent]) -> dict[str, Any]:
    """Return the object of /v1/chat/completions."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.data == "[DONE]":
            continue
        chunk = dict(event.data)
        for part in chunk.pop("choices"):
            delta = part.pop("delta")
            choice = choices.setdefault(part["index"], {"message": {"content": None}})
            _add_delta(choice["message"], delta)
            _add_choice(choice, part)
        usage = chunk.pop("usage")
        answer |= chunk
        answer |= {"usage": usage} if usage else {}
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, [])
            for call in value:
                if call.pop("index") == len(calls):
                    calls.append(call)
                else:
                    assert list(call) == ["function"]
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        elif name == "role" or value is None:
            message.setdefault(name, value)
        else:
            message[name] = (message.get(name) or "") + value


def _add_choice(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add what is no message; lists go on, other values are the last ones."""
    for name, value in part.items():
        if name == "text":
            choice[name] = choice.get(name, "") + value
        elif name == "token_ids":
            choice[name] = [*choice.get(name, []), *value]
        elif name == "logprobs" and value is not None:
            sums = choice.get(name) or {}
            choice[name] = {
                each: [*(sums.get(each) or []), *more] if isinstance(more, list) else more
                for each, more in value.items()
            }
        elif name != "logprobs" or name not in choice:
            choice[name] = value


def completion_sum(events: list[Sent]) -> dict[str, Any]:
    """Return the object of /v1/completions."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.data == "[DONE]":
            continue
        chunk = dict(event.data)
        for part in chunk.pop("choices"):
            _add_choice(choices.setdefault(part["index"], {}), part)
        usage = chunk.pop("usage")
        answer |= chunk
        answer |= {"usage": usage} if usage else {}
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def response_sum(events: list[Sent]) -> dict[str, Any]:
    """Return the object of /v1/responses; checks that events of an end say what came before."""
    items: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    for event in events:
        data = event.data
        kind = data["type"]
        if kind == "response.output_item.added":
            assert data["output_index"] == len(items)
            items.append(data["item"])
        elif kind == "response.content_part.added":
            assert data["content_index"] == len(items[-1]["content"])
            items[-1]["content"].append(data["part"])
        elif kind == "response.function_call_arguments.delta":
            items[-1]["arguments"] += data["delta"]
        elif kind.endswith("_text.delta"):
            part = items[-1]["content"][-1]
            part["text"] += data["delta"]
            if "logprobs" in data:
                part["logprobs"] += data["logprobs"]
        elif kind == "response.function_call_arguments.done":
            assert data["arguments"] == items[-1]["arguments"]
        elif kind.endswith("_text.done"):
            assert data["text"] == items[-1]["content"][-1]["text"]
        elif kind == "response.content_part.done":
            assert data["part"] == items[-1]["content"][-1]
        elif kind == "response.output_item.done":
            assert data["item"] == {**items[-1], "status": data["item"]["status"]}
            items[-1]["status"] = data["item"]["status"]
        else:
            answer = data["response"]
    assert answer["output"] == items
    return answer


def message_sum(events: list[Sent]) -> dict[str, Any]:
    """Return the object of /v1/messages."""
    message: dict[str, Any] = {}
    token_ids: list[int] = []
    json_texts: dict[int, str] = {}
    for event in events:
        data = event.data
        token_ids += data.get("token_ids", ())
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                assert data["index"] == len(message["content"])
                message["content"].append(data["content_block"])
            case "content_block_delta":
                block, delta = message["content"][data["index"]], dict(data["delta"])
                if delta.pop("type") == "input_json_delta":
                    sofar = json_texts.get(data["index"], "")
                    json_texts[data["index"]] = sofar + delta["partial_json"]
                else:
                    [(name, text)] = delta.items()
                    block[name] += text
            case "message_delta":
                message |= data["delta"]
                message["usage"] |= data["usage"]
    for index, text in json_texts.items():
        if text:
            message["content"][index]["input"] = _arguments(text)
    return {**message, "token_ids": token_ids}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {INVALID_JSON: text}
