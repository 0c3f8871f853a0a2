"""What all parsers share: text that waits, and calls that turn out to be none.

A format is written as generators that read from the beginning to the end, as if all text were
there. Where one needs more, it yields; so it does not matter how the text is split.
"""

from collections.abc import Callable, Generator, Sequence

from router.chat.parsers.events import (
    ArgumentsDelta,
    CallIds,
    ContentDelta,
    ParserEvent,
    ToolCallBegan,
    ToolCallEnded,
)
from router.chat.parsers.json_scan import SPACE, JsonScanner
from router.chat.parsers.markers import first_marker, held_suffix

# Of text that is kept until its meaning is known: a longer one is content.
MAX_HELD_CHARS = 2**16
MAX_NAME_CHARS = 256
MAX_SPACES = 256
MAX_CALLS = 1024


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
    # With which it ends, the outermost last.
    end_markers: tuple[str, ...] = ()

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
        # What is held begins as calls alone do.
        self._is_marked = False
        # What is held follows a complete call.
        self._is_closing = False
        # Ends of a call that were not where they should be: they are no content wherever they are.
        self._strays: tuple[str, ...] = ()
        self._is_last = False
        # It has ended by itself.
        self._is_whole = False
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

    def finish(self, is_cut: bool = False) -> list[ParserEvent]:
        """Read what is left; as of OutputParser."""
        self._is_last = True
        self._is_whole = not is_cut
        next(self._run)
        events, self._events = self._events, []
        return events

    def _main(self) -> Generator[None]:
        yield
        yield from self._attempt(self._start())
        while True:
            found = yield from self._pass_until((*self.start_markers, *self._strays))
            if found in self._strays:
                self._held = None
                self._strays = () if found == self.end_markers[-1] else self.end_markers
            elif found:
                self._strays = ()
                yield from self._attempt(self._calls(found))
            elif self._is_last:
                yield

    def _attempt(self, call: Generator[None]) -> Generator[None]:
        """Read a call; where there is none, its text is content and is read again as such.

        A call that breaks once it is reported takes its rest with it, up to its end; one that the
        text ends in was cut, and what there is of its beginning is no content.
        """
        try:
            yield from call
            self._held = None
        except EndOfTextError:
            if self._is_open:
                self._end_call(is_whole=False)
                self._place = len(self._text)
            elif self._is_closing or self._is_marked:
                self._place = len(self._text)
            elif self._held is not None:
                self._content(self._text[self._held : self._again])
                self._place = self._again
            self._held = None
        except MalformedError:
            if self._is_open:
                yield from self._break_call()
            elif self._held is not None:
                self._content(self._text[self._held : self._again])
                self._place, self._held = self._again, None
                if self._is_closing:
                    yield from self._skip_ends(self.end_markers)
        self._is_closing = self._is_marked = False

    def _break_call(self) -> Generator[None]:
        """Report the rest of a call as its arguments: they are what the model wrote."""
        markers = (*self.end_markers, *self.start_markers)
        found = yield from self._pass_on(markers, self._broken)
        self._end_call(is_whole=False)
        self._held = None
        if found in self.start_markers:
            self._place -= len(found)
        elif found:
            self._strays = self.end_markers
            self._strays = () if found == self.end_markers[-1] else self.end_markers
            yield from self._skip_ends(self._strays)

    def _skip_ends(self, ends: tuple[str, ...]) -> Generator[None]:
        """Pass over ends of a call that stand here; later ones are passed over where they come."""
        self._strays = ends
        self._hold()
        try:
            while self._strays and (found := (yield from self._follows(*self._strays))):
                self._strays = () if found == self.end_markers[-1] else self.end_markers
                self._hold()
        except MalformedError:
            self._place = self._again
        except EndOfTextError:
            self._place = len(self._text)
        self._held = None

    def _start(self) -> Generator[None]:
        """Read what is a call only at the beginning of an output."""
        yield from ()

    def _calls(self, marker: str) -> Generator[None]:
        """Read calls one behind another: spaces between two are no content; others may be."""
        while marker:
            yield from self._call(marker)
            self._hold()
            marker = yield from self._follows(*self.start_markers)
            if marker:
                self._is_closing = False
                self._hold(self._place - len(marker))

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
                self._is_marked = True
                return marker
            end = self._end(markers if self._num_calls < MAX_CALLS else ())
            self._content(self._text[self._place : end])
            self._place = end
            if self._is_last:
                return ""
            yield

    def _pass_on(
        self, markers: Sequence[str], report: Callable[[str], None]
    ) -> Generator[None, None, str]:
        """Report text as it comes up to a marker, and read that; "" at the end of the text."""
        while True:
            found = first_marker(self._text, self._place, markers)
            end = self._end(markers) if found is None else found[0]
            if end > self._place:
                report(self._text[self._place : end])
            self._place = end
            if found is not None:
                self._place += len(found[1])
                return found[1]
            if self._is_last:
                self._place = len(self._text)
                return ""
            yield

    def _end(self, markers: Sequence[str]) -> int:
        """Return where the text ends that cannot become one of the markers any more."""
        if self._is_whole:
            return len(self._text)
        return held_suffix(self._text, self._place, markers)

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
            best = max((each for each in markers if rest.startswith(each)), key=len, default="")
            if (best and self._is_last) or not any(
                each.startswith(rest) and each != rest for each in markers
            ):
                break
            yield from self._more()
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

    def _follows(self, *markers: str) -> Generator[None, None, str]:
        """Read a marker that may stand after spaces; without one, the spaces stay as they are."""
        place = self._place
        yield from self._peek()
        try:
            if found := (yield from self._has_next(markers)):
                return found
        except EndOfTextError:
            if not self._is_whole:
                raise
        self._place = place
        return ""

    def _until(
        self, markers: Sequence[str], limit: int = MAX_NAME_CHARS, is_word: bool = False
    ) -> Generator[None, None, tuple[str, str]]:
        """Read up to the first of the markers; return the text before it, and the marker.

        Raises:
            MalformedError: none of them has come after `limit` characters, or the text is more than
                one word and has to be one.
        """
        searched = 0
        longest = max(map(len, markers))
        while True:
            found = first_marker(self._text, self._place + searched, markers)
            end = len(self._text) - longest if found is None else found[0]
            if end - self._place > limit:
                raise MalformedError
            known = held_suffix(self._text, self._place, markers) if found is None else end
            if is_word and len(self._text[self._place : known].split()) > 1:
                raise MalformedError
            if found is not None:
                text = self._text[self._place : found[0]]
                self._place = found[0] + len(found[1])
                return text, found[1]
            searched = max(0, len(self._text) - self._place - longest)
            yield from self._more()

    def _name(self, *markers: str) -> Generator[None, None, tuple[str, str]]:
        """Read the name of a tool; as `_until`."""
        text, marker = yield from self._until(markers, is_word=True)
        return checked_name(text), marker

    def _json(self) -> Generator[None, None, str]:
        """Read a JSON value; where nothing is held it is arguments, and goes out as it comes."""
        scanner = JsonScanner()
        parts: list[str] = []
        while True:
            part, self._place = scanner.read(self._text, self._place)
            if self._held is None:
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

    _broken = _arguments  # what becomes of the text of a call that broke

    def _end_call(self, is_whole: bool = True) -> None:
        self._events.append(ToolCallEnded(self._num_calls, is_whole))
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


def checked_name(text: str) -> str:
    """Return the name of a tool, without the spaces around it.

    Raises:
        MalformedError: it can be none.
    """
    name = text.strip()
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or set(name) & set(' "<>{}[]'):
        raise MalformedError
    return name
