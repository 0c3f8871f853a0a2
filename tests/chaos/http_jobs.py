"""What `make chaos SCENARIO=http` asks for: requests of every API, and how their clients go on."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_LONG = 240
_STOPS = ["class", "return", "__init__"]
_PROMPTS = ("The list class", "Return a copy of the string with all", "A function definition " * 12)
_FUNCTION = {
    "name": "sort",
    "parameters": {
        "type": "object",
        "properties": {
            "why": {"type": "string", "minLength": 60, "maxLength": 90},
            "size": {"enum": [1, 20, 300]},
        },
        "required": ["why", "size"],
        "additionalProperties": False,
    },
}
_WORDS = "([a-z]{2,9} ){40}"
_THOUGHT = "<think>([a-z]{2,9} ){20}</think>([a-z]{2,9} ){20}"
_CALL = (
    r'([a-z]{2,9} ){15}<tool_call>\{"name": "sort", "arguments": \{"why": "[a-z ]{60,90}"\}\}'
    "</tool_call>"
)
_SCHEMA = {"name": "sorting", "schema": _FUNCTION["parameters"]}
# Names of these APIs, and of vLLM beside them.
_OWN = frozenset(
    (
        *("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"),
        *("structured_outputs", "resumable"),
    )
)


class Way(StrEnum):
    """How a client asks, and goes on when its stream breaks."""

    COMPLETIONS = "openai completions, resume"
    CHAT = "openai chat, resume"
    COMPLETIONS_BY_ID = "completions, Last-Event-ID"
    CHAT_BY_ID = "chat, Last-Event-ID"
    RESPONSES = "openai responses, starting_after"


_COMPLETIONS: dict[str, dict[str, Any]] = {
    "greedy": {"seed": 4, "temperature": 0, "ignore_eos": True},
    "sampled": {"seed": 5, "ignore_eos": True, "resumable": True},
    "unseeded": {"ignore_eos": True, "resumable": True},
    "filtered": {"seed": 6, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalised": {
        "temperature": 0.7,
        "seed": 7,
        "presence_penalty": 0.8,
        "frequency_penalty": 0.6,
        "repetition_penalty": 1.3,
        "ignore_eos": True,
    },
    "reported": {"seed": 8, "logprobs": 3, "echo": True, "ignore_eos": True, "max_tokens": 160},
    "stopped": {"seed": 9, "stop": _STOPS, "min_tokens": 60},
    "n": {"seed": 10, "n": 2, "stop": _STOPS[:1], "max_tokens": 120, "resumable": True},
    "grammar": {"seed": 11, "structured_outputs": {"regex": _WORDS}},
}
_CHATS: dict[str, dict[str, Any]] = {
    "sampled": {"seed": 5, "ignore_eos": True},
    "unseeded": {"ignore_eos": True, "resumable": True},
    "reported": {"seed": 8, "logprobs": True, "top_logprobs": 2, "ignore_eos": True},
    "stopped": {"seed": 9, "stop": _STOPS, "min_tokens": 60},
    "n": {"seed": 10, "n": 2, "max_tokens": 120, "ignore_eos": True, "resumable": True},
    "schema": {"seed": 11, "response_format": {"type": "json_schema", "json_schema": _SCHEMA}},
    "thought": {"seed": 12, "structured_outputs": {"regex": _THOUGHT}},
    "called": {
        "seed": 13,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "structured_outputs": {"regex": _CALL},
    },
    "forced": {
        "seed": 14,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "required",
    },
}
_RESPONSES: dict[str, dict[str, Any]] = {
    "sampled": {"seed": 5, "ignore_eos": True, "background": True},
    "unseeded": {"ignore_eos": True, "background": True},
    "alone": {"seed": 6, "ignore_eos": True},
    "reported": {
        "seed": 8,
        "ignore_eos": True,
        "background": True,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    "schema": {
        "seed": 11,
        "background": True,
        "text": {"format": {"type": "json_schema", **_SCHEMA}},
    },
}
MODES = {
    Way.COMPLETIONS: _COMPLETIONS,
    Way.COMPLETIONS_BY_ID: {name: each for name, each in _COMPLETIONS.items() if "seed" in each},
    Way.CHAT: _CHATS,
    Way.CHAT_BY_ID: {name: each for name, each in _CHATS.items() if "seed" in each},
    Way.RESPONSES: _RESPONSES,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the pool that all streams draw from.

    Attributes:
        way: how its client asks.
        mode: of those of its way.
        prompt: number of its prompt.
        seed: in the place of its own; None leaves that.
    """

    way: Way
    mode: str
    prompt: int
    seed: int | None = None

    @property
    def num_choices(self) -> int:
        """Of its answer."""
        return int(MODES[self.way][self.mode].get("n", 1))

    @property
    def is_background(self) -> bool:
        """Whether its response is held for its client."""
        return bool(MODES[self.way][self.mode].get("background"))

    @property
    def body(self) -> dict[str, Any]:
        """Of its request."""
        prompt, body = _PROMPTS[self.prompt], dict(MODES[self.way][self.mode])
        if "seed" in body:
            body["seed"] += 100 * self.prompt
        if self.seed is not None:
            body["seed"] = self.seed
        body.setdefault("max_tokens", _LONG)
        match self.way:
            case Way.RESPONSES:
                body["max_output_tokens"] = body.pop("max_tokens")
                return {"model": "", "input": prompt, **body}
            case Way.COMPLETIONS | Way.COMPLETIONS_BY_ID:
                return {"model": "", "prompt": prompt, **body}
        return {"model": "", "messages": [{"role": "user", "content": prompt}], **body}

    @property
    def arguments(self) -> dict[str, Any]:
        """Of OpenAI's stock client, for the same request: what that does not know comes apart."""
        body = self.body
        own = _OWN | {"seed"} if self.way is Way.RESPONSES else _OWN
        extra = {name: body.pop(name) for name in own & body.keys()}
        return {**body, "extra_body": extra}


JOBS = tuple(
    Job(way, mode, prompt)
    for way, modes in MODES.items()
    for mode in modes
    for prompt in range(len(_PROMPTS))
)
