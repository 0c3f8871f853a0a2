"""gpt-oss: messages with a channel each, of which one may be a call."""

import re
from collections.abc import Generator

from router.chat.parsers.events import ContentDelta, ReasoningDelta
from router.chat.parsers.machine import (
    EndOfTextError,
    Machine,
    MalformedError,
    checked_name,
)

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MAX_HEADER_CHARS = 512
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyParser(Machine):
    """Reads harmony: analysis is reasoning, final is content, and what has a recipient is a call.

    https://cookbook.openai.com/articles/openai-harmony: a message is START, its role, CHANNEL, the
    channel, MESSAGE, its text, and one of ENDS. The prompt ends after the first role.
    """

    start_markers = (START, CHANNEL)
    end_markers = ENDS

    def _start(self) -> Generator[None]:
        self._hold()
        try:
            if not (yield from self._has_next((" to=", "to="))):
                raise MalformedError
        except EndOfTextError:
            self._is_marked = not self._is_whole
            raise
        self._is_marked = True
        yield from self._message("to=")

    def _call(self, marker: str) -> Generator[None]:
        yield from self._message(marker)

    def _message(self, header: str) -> Generator[None]:
        more, _ = yield from self._until((MESSAGE,), _MAX_HEADER_CHARS)
        header += more
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if channel is None or any(end in header for end in ENDS):
            raise MalformedError
        if recipient is not None:
            yield from self._json_arguments(checked_name(recipient[1]))
            yield from self._expect(*ENDS)
            return
        self._held = None
        yield from self._body(ReasoningDelta if channel[1] == "analysis" else ContentDelta)

    def _body(self, kind: type[ReasoningDelta | ContentDelta]) -> Generator[None]:
        """Report the text of a message; its end, or the beginning of another one, ends it."""
        markers = (*ENDS, START, CHANNEL)
        found = yield from self._pass_on(markers, lambda text: self._events.append(kind(text)))
        if found not in ENDS:
            self._place -= len(found)
