"""Tables of requests that every client is to answer alike: texts, calls of tools, and values."""

from dataclasses import dataclass
from typing import Any

from quire import SamplingParams, StructuredOutputsParams

PROMPTS = (
    "The list class",
    "Return the largest item",
    "A tuple is",
    "def insert(self, index, value):",
    "Changed in version 3.8:",
    "for each in sorted(names):\n",
    "中文 😀 and",
    "The module",
    "If the file does not exist,",
    "class Deque:\n    ",
    "Note:",
    "x",
    "The iterator protocol consists of",
)
# Fields that every API has, by OpenAI's names.
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "max_tokens": 1},
    {"temperature": 0.0, "max_tokens": 40},
    {"temperature": 0.0, "stop": ["e"]},
    {"temperature": 0.0, "stop": [".", "\n"]},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 2**31 - 1},
    {"temperature": 0.7, "seed": 3, "top_p": 0.9},
    {"temperature": 1.5, "seed": 4, "top_p": 0.5},
    {"temperature": 1.0, "seed": 5, "presence_penalty": 1.5},
    {"temperature": 1.0, "seed": 6, "frequency_penalty": -0.5},
    {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
)
MAX_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Case:
    """A request.

    Attributes:
        prompt: its text, or that of the only message of a conversation.
        params: fields by OpenAI's names: `max_tokens` among them, and with `tools` also
            `tool_choice`, or `response_format` with a JSON schema.
    """

    prompt: str
    params: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the conversation."""
        return [{"role": "user", "content": self.prompt}]

    @property
    def sampling_params(self) -> SamplingParams:
        """Return the parameters as Quire's own API takes them."""
        rest = {name: value for name, value in self.params.items() if name not in TOOL_FIELDS}
        if "response_format" in rest:
            schema = rest.pop("response_format")["json_schema"]["schema"]
            rest["structured_outputs"] = StructuredOutputsParams(json=schema)
        return SamplingParams(**{**rest, "stop": tuple(rest.get("stop", ()))})

    @property
    def tools(self) -> dict[str, Any]:
        """Return what a conversation may call, and has to."""
        return {name: self.params[name] for name in TOOL_FIELDS if name in self.params}


CASES = [
    Case(prompt, {"max_tokens": MAX_TOKENS, **params}) for prompt in PROMPTS for params in PARAMS
]

# What is forced is compared as the values that a client makes of it, which have to be whole.
TOOL_FIELDS = ("tools", "tool_choice")
FORCED_PROMPTS = ("What does list.sort do?", "Move every item of 中文 😀", "x")
FORCED_PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "top_p": 0.9, "frequency_penalty": 0.5},
)
FORCED_MAX_TOKENS = 1200
# clients/answer_model.py has the same as classes.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "method": {"enum": ["sort", "reverse", "insert"], "type": "string"},
        "in_place": {"type": "boolean"},
        "sizes": {
            "items": {"maximum": 999, "minimum": 0, "type": "integer"},
            "maxItems": 3,
            "type": "array",
        },
        "note": {"maxLength": 8, "type": "string"},
    },
    "required": ["method", "in_place", "sizes", "note"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "describe", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "move_item",
            "description": "Move an item, “中” too.",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "integer", "minimum": 0, "maximum": 9},
                    "unit": {"anyOf": [{"enum": ["item", "slice"]}, {"type": "null"}]},
                },
                "required": ["to"],
                "additionalProperties": False,
            },
        },
    },
]
TOOL_CHOICES = (
    "required",
    *({"type": "function", "function": {"name": each["function"]["name"]}} for each in TOOLS),
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "Answer", "schema": SCHEMA}}
_FORCED = [
    Case(prompt, {"max_tokens": FORCED_MAX_TOKENS, **params})
    for prompt in FORCED_PROMPTS
    for params in FORCED_PARAMS
]
CALLS = [
    Case(case.prompt, {**case.params, "tools": TOOLS, "tool_choice": choice})
    for case in _FORCED
    for choice in TOOL_CHOICES
]
VALUES = [Case(case.prompt, {**case.params, "response_format": FORMAT}) for case in _FORCED]
