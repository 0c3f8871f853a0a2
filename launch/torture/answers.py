"""Answers, and what has come of one so far."""

import json
from dataclasses import dataclass
from typing import Any

from launch.torture.errors import RefusedError, UnreadableError
from launch.torture.events import Event

DONE = "[DONE]"
Token = int | str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Attributes:
        text: all of it.
        tokens: ids where the server sends them, else their texts where it sends log-probabilities,
            else none.
        logprobs: of each token; none where the server sends none.
        finish_reason: "stop", "length" or another.
    """

    text: str
    tokens: tuple[Token, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a stream broke and went on: how many characters and tokens had come."""

    num_characters: int
    num_tokens: int


class Received:
    """What a client has of a stream, over one connection or several.

    Attributes:
        num_events: with a part of the answer.
        event_id: of the last event that has one; "" for none.
        answer_id: that the events name; "" for none.
        seed: that the server reports; None where it does not.
        fingerprint: likewise.
        has_ids: tokens are ids.
        num_prompt_tokens: None where the server does not report it.
        cuts: where it broke, in order.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.event_id = ""
        self.answer_id = ""
        self.seed: int | None = None
        self.fingerprint: str | None = None
        self.has_ids = False
        self.num_prompt_tokens: int | None = None
        self.cuts: list[Cut] = []
        self._text = ""
        self._ids: list[Token] = []
        self._texts: list[Token] = []
        self._logprobs: list[float] = []
        self._finish_reason = ""

    @property
    def is_whole(self) -> bool:
        """Whether the answer has come to its end."""
        return bool(self._finish_reason)

    def answer(self) -> Answer:
        """Return what has come."""
        tokens = self._ids if self.has_ids else self._texts
        return Answer(self._text, tuple(tokens), tuple(self._logprobs), self._finish_reason)

    def cut(self) -> None:
        """Note that the stream broke here."""
        cut = Cut(len(self._text), len(self._ids if self.has_ids else self._texts))
        if cut not in self.cuts:
            self.cuts.append(cut)

    def take(self, event: Event) -> bool:
        """Take an event; return whether it is the last.

        Raises:
            RefusedError: it is an error.
            UnreadableError: it is none of OpenAI's API.
        """
        if event.id:
            self.event_id = event.id
        if event.data == DONE:
            return True
        try:
            self._take_content(json.loads(event.data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableError(
                f"event: must be one of OpenAI's API, got {event.data[:80]!r} ({reason})"
            ) from None
        return False

    def _take_content(self, content: dict[str, Any]) -> None:
        if content.get("error"):
            raise RefusedError(0, error_text(content))
        self.answer_id = str(content.get("id") or self.answer_id)
        self.fingerprint = content.get("system_fingerprint", self.fingerprint)
        if usage := content.get("usage"):
            self.num_prompt_tokens = usage.get("prompt_tokens", self.num_prompt_tokens)
        for choice in content.get("choices") or ():
            self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        # A server that splits reasoning from the answer sends either, reasoning by either name or
        # by both.
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        parts = (reasoning, delta.get("content"), choice.get("text"))
        text = "".join(part for part in parts if part)
        token_ids = choice.get("token_ids")
        if token_ids is not None:
            self.has_ids = True
            self._ids += map(int, token_ids)
        pairs = _logprobs(choice.get("logprobs") or {})
        for token, logprob in pairs:
            self._texts.append(token)
            self._logprobs.append(logprob)
        self.num_events += bool(text or token_ids or pairs)
        self._text += text
        self.seed = choice.get("seed", self.seed)
        self._finish_reason = str(choice.get("finish_reason") or self._finish_reason)


def error_text(content: Any) -> str:
    """Return the message of an error in OpenAI's shape, or of another shape as it stands."""
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]


def _logprobs(content: dict[str, Any]) -> list[tuple[str, float]]:
    """Return tokens and their log-probabilities in the shape of chats or that of completions."""
    if content.get("content"):
        return [(str(each["token"]), float(each["logprob"])) for each in content["content"]]
    values = content.get("token_logprobs") or ()
    texts = content.get("tokens") or [""] * len(values)
    return [
        (str(text), float(value))
        for text, value in zip(texts, values, strict=True)
        if value is not None
    ]
