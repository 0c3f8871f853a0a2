"""What parsers of outputs are, what they report, and what the ids of tool calls are."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PREFIX = "call_"
_NUM_DIGITS = 24
# Mistral's templates take ids of nine letters and digits, and no others.
_NUM_SHORT_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the assistant thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegan:
    """A tool is called.

    Attributes:
        index: of the call, from 0.
        id: that the tool's answer refers to.
        name: of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: all of them, one after the other, are a JSON object.

    They are what the model wrote, and no JSON, where the call broke off or broke.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call's arguments are complete, or no more of them will come.

    Attributes:
        index: of the call.
        is_whole: whether they are JSON. A client must not act upon others.
    """

    index: int
    is_whole: bool = True


ParserEvent = ContentDelta | ReasoningDelta | ToolCallBegan | ArgumentsDelta | ToolCallEnded


class OutputParser(Protocol):
    """Reads one output.

    Equal text gives equal events, however it is split, but for where deltas of one kind are split.
    So text that is fed again after a break gives what it gave before.
    """

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take the next text, and return what is known by it.

        Args:
            text: may be empty.
            token_ids: of that text.
        """

    def finish(self, is_cut: bool = False) -> list[ParserEvent]:
        """Return what the text means that has waited for more. Nothing follows.

        Args:
            is_cut: the output would have gone on: the beginning of a marker at its end is no text.
        """


@dataclass(frozen=True, slots=True)
class CallIds:
    """Makes the ids of an output's calls: the same ones wherever the same request is replayed.

    Attributes:
        request_id: of the request.
        output: index of the output.
        is_short: make ids as Mistral's templates take them.
    """

    request_id: str = ""
    output: int = 0
    is_short: bool = False

    def id(self, index: int) -> str:
        """Return the id of a call."""
        digest = hashlib.sha256(f"{index}/{self.output}/{self.request_id}".encode()).digest()
        number, digits = int.from_bytes(digest, "big"), ""
        for _ in range(_NUM_SHORT_DIGITS if self.is_short else _NUM_DIGITS):
            number, digit = divmod(number, len(_DIGITS))
            digits += _DIGITS[digit]
        return digits if self.is_short else _PREFIX + digits
