"""Variables for the chat template, of a JSON body."""

import json
from typing import Any

from router.http.fields import Fields


def read_template_kwargs(body: Fields, reasoning_effort: str, **own: Any) -> str:
    """Return the variables for the template, as JSON; "" for none.

    Args:
        body: whose `chat_template_kwargs` count more than those of other fields.
        reasoning_effort: "" for none.
        own: variables that other fields of an API stand for.
    """
    fields = body.fields("chat_template_kwargs")
    kwargs = {"reasoning_effort": reasoning_effort} if reasoning_effort else {}
    kwargs |= own | {name: fields.value(name) for name in fields.names()}
    return json.dumps(kwargs) if kwargs else ""


def read_thinking(body: Fields) -> dict[str, Any]:
    """Return what `thinking` is to templates, by both names that they know it under.

    Raises:
        InvalidRequestError: it is of another type, or of a kind that there is not.
    """
    thinking = body.fields("thinking")
    thinking.integer("budget_tokens")  # of the right type; no model obeys it
    match thinking.text("type", "" if thinking.names() else "adaptive"):
        case "adaptive":
            return {}
        case "enabled":
            return {"enable_thinking": True, "thinking": True}
        case "disabled":
            return {"enable_thinking": False, "thinking": False}
        case kind:
            raise thinking.refuse(
                "type", f"must be enabled, disabled or adaptive, got {kind[:32] or 'none'}"
            )
