"""Reasoning between tags, before the answer."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from router.chat.parsers.events import (
    CallIds,
    ContentDelta,
    OutputParser,
    ParserEvent,
    ReasoningDelta,
)
from router.chat.parsers.machine import (
    EndOfTextError,
    Machine,
    MalformedError,
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands around reasoning.

    Attributes:
        begin: before it.
        end: behind it.
        is_implied: an output begins with reasoning even where `begin` is nowhere: the model was
            trained on templates that write it, and has one that may not.
    """

    begin: str
    end: str
    is_implied: bool = False

    def is_open(self, prompt_end: str) -> bool:
        """Return whether an output begins within reasoning.

        Args:
            prompt_end: the last characters of the prompt. A template may write `begin`, or write
                reasoning that is empty, so that there is none.
        """
        begin, end = prompt_end.rfind(self.begin), prompt_end.rfind(self.end)
        if begin == end:
            return self.is_implied
        if prompt_end[max(begin, end) :].strip() not in (self.begin, self.end):
            return self.is_implied  # of an earlier turn
        return begin > end


class ReasoningParser(Machine):
    """Splits reasoning from the rest of an output, which another parser reads.

    Args:
        tags: around reasoning.
        is_open: the output begins within it.
        rest: reads what is no reasoning; None leaves it as content.
    """

    def __init__(
        self, tags: ReasoningTags, is_open: bool, rest: OutputParser | None = None
    ) -> None:
        self._tags = tags
        self._begins_open = is_open
        self._rest = rest
        super().__init__(CallIds())

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take the next text; as of OutputParser."""
        return self._read_rest(super().feed(text, token_ids))

    def finish(self, is_cut: bool = False) -> list[ParserEvent]:
        """Read what is left; as of OutputParser."""
        events = self._read_rest(super().finish(is_cut))
        return events if self._rest is None else events + self._rest.finish(is_cut)

    def _read_rest(self, events: list[ParserEvent]) -> list[ParserEvent]:
        if self._rest is None:
            return events
        read: list[ParserEvent] = []
        for event in events:
            read += self._rest.feed(event.text) if isinstance(event, ContentDelta) else [event]
        return read

    def _start(self) -> Generator[None]:
        self._hold()
        try:
            yield from self._peek()
            is_tagged = bool((yield from self._has_next((self._tags.begin,))))
        except MalformedError:
            is_tagged = False
        except EndOfTextError:
            is_tagged = False
            self._text = self._text[: self._end((self._tags.begin,))]
        if not (is_tagged or self._begins_open):
            raise MalformedError
        if not is_tagged:
            self._place = self._again
        self._held = None
        yield from self._reasoning()

    def _reasoning(self) -> Generator[None]:
        yield from self._pass_on(
            (self._tags.end,), lambda text: self._events.append(ReasoningDelta(text))
        )
