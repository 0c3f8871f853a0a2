"""What all parsers share: text that waits, and calls that turn out to be none.

A format is written as generators that read from the beginning to the end, as if all text were
there. Where one needs more, it yields; so it does not matter how the text is split.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

from router.chat.parsers.events import (
    ArgumentsDelta,
    CallIds,
    ContentDelta,
    ParserEvent,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.json_scan import SPACE, JsonScanner

# Of text that is kept until its meaning is known: a longer one is content.
MAX_HELD_CHARS = 2**16
MAX_NAME_CHARS = 256
MAX_SPACES = 256
MAX_CALLS = 1024


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

    def finish(self) -> list[ParserEvent]:
        """Return what the text means that has waited for more. Nothing follows."""


class MalformedError(Exception):
    """What began like a call is none."""


class EndOfTextError(Exception):
    """More text is needed, and none will come."""


class Machine:
    """Reads text in any pieces. Formats of calls read in `_call` what follows a marker.

    Args:
        ids: of the calls.
    """

    # With which a call begins, wherever it stands; none begins with another.
    start_markers: tuple[str, ...] = ()

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._text = ""
        self._place = 0
        self._events: list[ParserEvent] = []
        self._num_calls = 0
        # Arguments of the call so far go out as they come.
        self._is_open = False
        # Where text begins that is content if the call fails, and where it would be read again.
        self._held: int | None = None
        self._again = 0
        # What is held follows a complete call.
        self._is_closing = False
        self._is_last = False
        self._run = self._main()
        next(self._run)

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take the next text; as of OutputParser."""
        if text:
            self._text += text
            next(self._run)
        if self._held is None:
            self._text, self._place = self._text[self._place :], 0
        events, self._events = self._events, []
        return events

    def finish(self) -> list[ParserEvent]:
        """Read what is left; as of OutputParser."""
        self._is_last = True
        next(self._run)
        events, self._events = self._events, []
        return events

    def _main(self) -> Generator[None]:
        yield
        yield from self._attempt(self._start())
        while True:
            found = yield from self._pass_until(self.start_markers)
            if found:
                yield from self._attempt(self._call(found))
            elif self._is_last:
                yield

    def _attempt(self, call: Generator[None]) -> Generator[None]:
        """Read a call; where there is none, its text is content and is read again as such."""
        try:
            yield from call
            self._held = None
        except (MalformedError, EndOfTextError) as error:
            if self._is_open:
                self._end_call()
                self._held = None
            elif self._held is not None:
                if self._is_closing and isinstance(error, EndOfTextError):
                    self._place = self._again = len(self._text)
                else:
                    self._content(self._text[self._held : self._again])
                self._place, self._held = self._again, None
        self._is_closing = False

    def _start(self) -> Generator[None]:
        """Read what is a call only at the beginning of an output."""
        yield from ()

    def _call(self, marker: str) -> Generator[None]:
        """Read what follows a marker. A format without calls has none: the marker is content.

        Raises:
            MalformedError: it is no call.
            EndOfTextError: the text ends before the call.
        """
        yield from ()
        raise MalformedError

    def _pass_until(self, markers: Sequence[str]) -> Generator[None, None, str]:
        """Report content up to a marker, and hold the marker; "" at the end of the text."""
        while True:
            found = first_marker(self._text, self._place, markers)
            if found is not None and self._num_calls < MAX_CALLS:
                place, marker = found
                self._content(self._text[self._place : place])
                self._place = place + len(marker)
                self._hold(place)
                return marker
            end = len(self._text)
            if not self._is_last and self._num_calls < MAX_CALLS:
                end = held_suffix(self._text, self._place, markers)
            self._content(self._text[self._place : end])
            self._place = end
            if self._is_last:
                return ""
            yield

    def _hold(self, place: int | None = None) -> None:
        """Keep the text from a place on, or from here, to be content if the call fails."""
        self._held = self._place if place is None else place
        self._again = self._place

    def _more(self) -> Generator[None]:
        """Wait for text.

        Raises:
            EndOfTextError: there is no more.
            MalformedError: too much is held already.
        """
        self._check_held(self._place)
        if self._is_last:
            raise EndOfTextError
        yield

    def _check_held(self, place: int) -> None:
        if self._held is not None and place - self._held > MAX_HELD_CHARS:
            raise MalformedError

    def _peek(self) -> Generator[None, None, str]:
        """Pass over spaces; return the character that follows them, and leave it."""
        num_spaces = 0
        while True:
            place = self._place + num_spaces
            if num_spaces > MAX_SPACES:
                raise MalformedError
            if place == len(self._text):
                yield from self._more()
            elif self._text[place] in SPACE:
                num_spaces += 1
            else:
                self._place = place
                return self._text[place]

    def _has_next(self, markers: Sequence[str]) -> Generator[None, None, str]:
        """Read the marker that stands here; of two that do the longer, "" for none of them."""
        longest = max(map(len, markers))
        while True:
            rest = self._text[self._place : self._place + longest]
            if not any(each.startswith(rest) and each != rest for each in markers) or self._is_last:
                break
            yield from self._more()
        best = max((each for each in markers if rest.startswith(each)), key=len, default="")
        self._place += len(best)
        return best

    def _expect(self, *markers: str) -> Generator[None, None, str]:
        """Read one of the markers, after spaces.

        Raises:
            MalformedError: another text has come.
        """
        yield from self._peek()
        found = yield from self._has_next(markers)
        if not found:
            raise MalformedError
        return found

    def _until(
        self, markers: Sequence[str], limit: int = MAX_NAME_CHARS
    ) -> Generator[None, None, tuple[str, str]]:
        """Read up to the first of the markers; return the text before it, and the marker.

        Raises:
            MalformedError: none of them has come after `limit` characters.
        """
        searched = 0
        longest = max(map(len, markers))
        while True:
            found = first_marker(self._text, self._place + searched, markers)
            end = len(self._text) - longest if found is None else found[0]
            if end - self._place > limit:
                raise MalformedError
            if found is not None:
                text = self._text[self._place : found[0]]
                self._place = found[0] + len(found[1])
                return text, found[1]
            searched = max(0, len(self._text) - self._place - longest)
            yield from self._more()

    def _name(self, *markers: str) -> Generator[None, None, tuple[str, str]]:
        """Read the name of a tool; as `_until`."""
        text, marker = yield from self._until(markers)
        return checked_name(text), marker

    def _json(self) -> Generator[None, None, str]:
        """Read a JSON value; of an open call it is the arguments, and goes out as it comes."""
        scanner = JsonScanner()
        parts: list[str] = []
        while True:
            begin = self._place
            self._place = scanner.read(self._text, begin)
            part = self._text[begin : self._place]
            if self._is_open:
                self._arguments(part)
            else:
                parts.append(part)
                self._check_held(self._place)
            if scanner.is_broken:
                raise MalformedError
            if scanner.is_done:
                return "".join(parts)
            yield from self._more()

    def _json_arguments(self, name: str) -> Generator[None]:
        """Read the arguments of a call, which stand here."""
        if (yield from self._peek()) != "{":
            raise MalformedError
        self._begin_call(name)
        yield from self._json()
        self._end_call()

    def _begin_call(self, name: str) -> None:
        if self._num_calls >= MAX_CALLS:
            raise MalformedError
        self._check_held(self._place)
        self._events.append(ToolCallBegan(self._num_calls, self._ids.id(self._num_calls), name))
        self._is_open = True
        self._held = None

    def _arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsDelta(self._num_calls, text))

    def _end_call(self) -> None:
        self._events.append(ToolCallEnded(self._num_calls))
        self._num_calls += 1
        self._is_open = False
        self._is_closing = True
        self._hold()

    def _whole_call(self, name: str, arguments: str) -> None:
        """Report a call that is known at once."""
        self._begin_call(name)
        self._arguments(arguments)
        self._end_call()

    def _content(self, text: str) -> None:
        if text:
            self._events.append(ContentDelta(text))


def first_marker(text: str, start: int, markers: Sequence[str]) -> tuple[int, str] | None:
    """Return place and text of the marker that comes first, None where there is none."""
    found = ((text.find(marker, start), marker) for marker in markers)
    return min((each for each in found if each[0] >= 0), default=None)


def held_suffix(text: str, start: int, markers: Sequence[str]) -> int:
    """Return where the longest end of a text begins that may become one of the markers."""
    longest = max(map(len, markers), default=0) - 1
    for place in range(max(start, len(text) - longest), len(text)):
        if any(marker.startswith(text[place:]) for marker in markers):
            return place
    return len(text)


def checked_name(text: str) -> str:
    """Return the name of a tool, without the spaces around it.

    Raises:
        MalformedError: it can be none.
    """
    name = text.strip()
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or set(name) & set(' "<>{}[]'):
        raise MalformedError
    return name
