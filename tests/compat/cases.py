"""The table of requests that every front answers with the same text."""

from dataclasses import dataclass
from typing import Any

from quire import SamplingParams

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
        params: fields by OpenAI's names, `max_tokens` among them.
    """

    prompt: str
    params: dict[str, Any]

    @property
    def sampling_params(self) -> SamplingParams:
        """Return the parameters as Quire's own API takes them."""
        stop = tuple(self.params.get("stop", ()))
        return SamplingParams(**{**self.params, "stop": stop})


CASES = [
    Case(prompt, {"max_tokens": MAX_TOKENS, **params}) for prompt in PROMPTS for params in PARAMS
]
