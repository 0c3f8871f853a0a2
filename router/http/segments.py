"""Stretches of an output that are of one kind: content, reasoning, or a call of a tool.

APIs that show an answer as a list of such stretches make a block, or an item, of each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from router.chat.parsers.events import (
    ArgumentsDelta,
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.reader import OutputReader
from router.http.chat.choices import Part
from router.http.chat.messages import read_part


class Kind(Enum):
    """What a segment is."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class Segment:
    """One stretch.

    Attributes:
        index: its place among the segments of the output.
        kind: what it is.
        call: of a call, its id and the name of the tool.
        texts: so far; of a call, its arguments.
        is_whole: whether it is no call whose arguments are cut or broken.
    """

    index: int
    kind: Kind
    call: ToolCallBegan | None = None
    texts: list[str] = field(default_factory=list)
    is_whole: bool = True

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Began:
    """A segment begins; it has no text yet."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Added:
    """A segment has more text."""

    segment: Segment
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A segment is complete."""

    segment: Segment


Step = Began | Added | Ended


class Segments:
    """Makes segments of the parts of a choice, one after the other: a function of the tokens alone.

    Where all text is content, there is one segment, from the start on.

    Args:
        reader: of the output, which has begun when the first part comes.

    Attributes:
        found: all so far.
        open: the one that goes on; None between two.
    """

    def __init__(self, reader: OutputReader) -> None:
        self.found: list[Segment] = []
        self.open: Segment | None = None
        self._reader = reader

    def take(self, part: Part) -> Iterator[Step]:
        """Yield what becomes of the segments by the next part."""
        if part.is_first:
            if self._reader.is_plain:
                yield self._begin(Kind.CONTENT)
            return
        for event in read_part(self._reader, part):
            yield from self._take(event)
        if part.end is not None:
            yield from self._end()

    def _take(self, event: ParserEvent) -> Iterator[Step]:
        match event:
            case ContentDelta(text):
                yield from self._add(Kind.CONTENT, text)
            case ReasoningDelta(text):
                yield from self._add(Kind.REASONING, text)
            case ToolCallBegan():
                yield from self._end()
                yield self._begin(Kind.CALL, event)
            case ArgumentsDelta(_, text):
                yield from self._add(Kind.CALL, text)
            case ToolCallEnded(_, is_whole):
                if self.open is not None:
                    self.open.is_whole = is_whole
                yield from self._end()

    def _add(self, kind: Kind, text: str) -> Iterator[Step]:
        if self.open is None or self.open.kind is not kind:
            yield from self._end()
            yield self._begin(kind)
        assert self.open is not None, "it has begun"
        self.open.texts.append(text)
        yield Added(self.open, text)

    def _begin(self, kind: Kind, call: ToolCallBegan | None = None) -> Began:
        self.open = Segment(len(self.found), kind, call)
        self.found.append(self.open)
        return Began(self.open)

    def _end(self) -> Iterator[Step]:
        if self.open is not None:
            segment, self.open = self.open, None
            yield Ended(segment)
