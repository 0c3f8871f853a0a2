"""Which fields a body may have, and of which type: seen as the routes' own readers ask for them."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from router.http.chat import request as chat
from router.http.completions import request as completions
from router.http.embeddings import request as vectors
from router.http.fields import Fields
from router.http.messages import request as messages
from router.http.responses import request as responses

_MESSAGES = [{"role": "user", "content": "hi"}]
_RESUME = {"id": "a", "seed": 1, "starting_after": 0}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
# Anthropic's.
_OWN_TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


class Recorder(Fields):
    """Fields that keep how each was asked for.

    Args:
        values: of the object.
        path: what stands before their names.
        kinds: to be added to, by the path of a field.
    """

    def __init__(self, values: Mapping[str, Any], path: str, kinds: dict[str, str]) -> None:
        super().__init__(values, path)
        self._kinds = kinds

    def _note(self, name: str, kind: str) -> None:
        self._kinds.setdefault(self.path(name), kind)

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        self._note(name, "text")
        return super().text(name, default)

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        self._note(name, "boolean")
        return super().boolean(name, default)

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer."""
        self._note(name, "integer")
        return super().integer(name, default)

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        self._note(name, "number")
        return super().number(name, default)

    def texts(self, name: str, max_items: int | None = None) -> tuple[str, ...]:
        """Return an array of strings."""
        self._note(name, "texts")
        return super().texts(name, max_items)

    def integers(self, name: str, max_items: int | None = None) -> tuple[int, ...]:
        """Return an array of integers."""
        self._note(name, "integers")
        return super().integers(name, max_items)

    def items(self, name: str, max_items: int | None = None) -> list[Any]:
        """Return an array."""
        self._note(name, "items")
        return super().items(name, max_items)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object."""
        self._note(name, "mapping")
        return super().mapping(name)

    def fields(self, name: str) -> "Recorder":
        """Return the fields of an object."""
        return Recorder(self.mapping(name), f"{self.path(name)}.", self._kinds)


# By route: what reads a body, if that needs nothing but the body; and good bodies, short to answer,
# that have all of its fields looked at together.
ROUTES: dict[str, tuple[Callable[[Fields], object] | None, tuple[dict[str, Any], ...]]] = {
    "/v1/completions": (
        completions.read_request,
        (
            {"prompt": "The list", "max_tokens": 2},
            {"prompt": [5, 6, 7], "max_tokens": 2, "stream": True, "resume": _RESUME},
            {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 2, "echo": True},
        ),
    ),
    "/v1/chat/completions": (
        chat.read_request,
        (
            {"messages": _MESSAGES, "max_tokens": 2},
            {"messages": _MESSAGES, "max_tokens": 2, "stream": True, "resume": _RESUME},
            {"messages": _MESSAGES, "max_tokens": 2, "response_format": _SCHEMA},
            {"messages": _MESSAGES, "max_tokens": 2, "tools": _TOOLS},
        ),
    ),
    "/v1/responses": (
        lambda body: responses.read_request(body, "a"),
        (
            {"input": "hi", "max_output_tokens": 2},
            {"input": _MESSAGES, "max_output_tokens": 2, "stream": True},
            {"input": "hi", "max_output_tokens": 2, "metadata": {"a": "b"}, "instructions": "be"},
        ),
    ),
    "/v1/messages": (
        messages.read_request,
        (
            {"messages": _MESSAGES, "max_tokens": 2},
            {"messages": _MESSAGES, "max_tokens": 2, "stream": True, "resume": _RESUME},
            {"messages": _MESSAGES, "max_tokens": 2, "system": "be", "tools": _OWN_TOOLS},
        ),
    ),
    "/v1/messages/count_tokens": (messages.read_chat, ({"messages": _MESSAGES},)),
    "/v1/embeddings": (
        vectors.read_embeddings,
        ({"input": "The list"}, {"input": [[5, 6], [7]]}, {"input": ["a"], "normalize": False}),
    ),
    "/v1/score": (
        vectors.read_score,
        # One pair of names: one of another pair beside it is refused.
        ({"text_1": "a", "text_2": ["b", "c"]},),
    ),
    "/v1/rerank": (
        vectors.read_rerank,
        ({"query": "a", "documents": ["b", {"text": "c"}]},),
    ),
    "/tokenize": (None, ({"prompt": "The list"}, {"messages": _MESSAGES})),
    "/detokenize": (None, ({"tokens": [5, 6, 7]},)),
}
# What readers take as it is, and look into: kinds of their own.
_RESUMED = {
    "resume": "mapping",
    "resume.id": "text",
    "resume.seed": "integer",
    "resume.system_fingerprint": "text",
}
_GRAMMARS = {
    "guided_regex": "text",
    "guided_choice": "texts",
    "guided_grammar": "text",
    "structured_outputs.regex": "text",
    "structured_outputs.choice": "texts",
    "structured_outputs.json_object": "boolean",
}
_TOOLS_TOO = {"tools": "items", "tool_choice": "tool_choice"}
_KINDS = {
    "/v1/completions": {"prompt": "prompt", **_RESUMED, **_GRAMMARS},
    "/v1/chat/completions": {"messages": "messages", **_RESUMED, **_GRAMMARS, **_TOOLS_TOO},
    "/v1/responses": {"input": "messages", **_GRAMMARS, **_TOOLS_TOO},
    "/v1/messages": {"messages": "messages", **_RESUMED, **_GRAMMARS},
    "/v1/messages/count_tokens": {"messages": "messages", **_GRAMMARS},
    "/v1/embeddings": {"input": "prompt"},
    "/tokenize": {"add_special_tokens": "boolean", "return_token_strs": "boolean", "model": "text"},
    "/detokenize": {"tokens": "integers", "skip_special_tokens": "boolean", "model": "text"},
}
_NUMBERS = (5, 0, -1, 1.5, 10**30)
# Values of another type, which no field of a kind may have.
WRONG: dict[str, tuple[Any, ...]] = {
    "text": (*_NUMBERS, True, ["a"], {"a": "b"}),
    "boolean": (*_NUMBERS, "true", [True], {}),
    "integer": (1.5, -0.5, "3", True, [1], {"a": 1}),
    "number": ("1", "NaN", False, [1.0], {}),
    "texts": (*_NUMBERS, True, {"a": "b"}, [1], ["a", None], [["a"]]),
    "integers": (*_NUMBERS, "5", True, {}, ["a"], [1.5], [True], [None], [[1]]),
    "items": (*_NUMBERS, "a", True, {"a": 1}),
    "mapping": (*_NUMBERS, "a", True, ["a"], [{}]),
    "prompt": (
        *_NUMBERS,
        True,
        {},
        [],
        [True],
        [1, "a"],
        ["a", 1],
        [[1], "a"],
        [None],
        [-1],
        [2**64],
    ),
    "messages": (
        *_NUMBERS,
        True,
        {},
        ["a"],
        [None],
        [[]],
        [{"role": 5}],
        [{"role": "user", "content": 5}],
    ),
    "tool_choice": (*_NUMBERS, True, [], "maybe", {"type": 5}, {"function": "f"}),
}
_INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 2**31, 2**32, 2**63, 2**64, 10**30, 1e300, 3.0)
_TEXTS = (
    "",
    " ",
    "\0",
    "a" * 3000,
    "\ufeff",
    "\U0001f600",
    "中" * 100,
    "%s{}\\",
    "\r\nx: y",
    "[DONE]",
)
# At and beyond the bounds of a kind.
EXTREME: dict[str, tuple[Any, ...]] = {
    "text": _TEXTS,
    "boolean": (True, False, None),
    "integer": _INTEGERS,
    "number": (*_INTEGERS, -0.0, 1e-320, 0.5, -1e308, 1e308, 10**400),
    "texts": (*_TEXTS, [], list(_TEXTS), ["a"] * 3000, "a" * 70_000),
    "integers": ([], list(range(3000)), [-1], [2**31], [2**64], [10**30], [0] * 70_000, [4.0]),
    "items": ([], [None], [[]], [{}] * 300, [{"type": "function"}], [[[[]]]]),
    "mapping": ({}, {"": None}, {"a": {"b": {}}}, {str(n): n for n in range(2000)}, {"type": "x"}),
    "prompt": (*_TEXTS, [0], list(range(1500)), ["a"] * 129, [[1], []], "a" * 2**21),
    "messages": (
        *([], "", [{"role": "user", "content": text} for text in _TEXTS]),
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}],
        [{"role": "tool", "content": "a"}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}] * 50,
        [{"role": "user", "content": "a"}] * 5000,
    ),
    "tool_choice": ("none", "required", {"type": "function", "function": {"name": "missing"}}),
}


def kinds_of(route: str) -> dict[str, str]:
    """Return the fields of a route's bodies, by their paths: how its reader asks for each."""
    read, bodies = ROUTES[route]
    kinds = dict(_KINDS.get(route, {}))
    for body in bodies if read else ():
        read(Recorder(body, "", kinds))
    return kinds


def good_body(draw: random.Random, route: str) -> dict[str, Any]:
    """Return a body of a route that is taken."""
    body = dict(draw.choice(ROUTES[route][1]))
    if "resume" in body:
        # An id of its own: streams of one id end each other.
        body["resume"] = {**_RESUME, "id": f"{draw.getrandbits(64):x}"}
    return body


def with_value(draw: random.Random, route: str, path: str, value: Any) -> dict[str, Any]:
    """Return a good body of a route in which one field has a value, and is looked at."""
    body = good_body(draw, route)
    while route == "/tokenize" and "messages" in body:
        body = good_body(draw, route)
    *names, last = path.split(".")
    if names[:1] == ["resume"]:
        body["resume"] = {**_RESUME, "id": f"{draw.getrandbits(64):x}"}
    if names[:1] == ["response_format"]:
        body["response_format"] = _SCHEMA
    if path.partition(".")[0] in ("stream_options", "resume"):
        body["stream"] = True
    place = body
    for name in names:
        inner = place.get(name)
        place[name] = dict(inner) if isinstance(inner, dict) else {}
        place = place[name]
    place[last] = value
    return body
