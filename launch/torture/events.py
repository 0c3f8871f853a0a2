"""Server-sent events out of bytes: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from dataclasses import dataclass

from launch.torture.errors import UnreadableError

MAX_EVENT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream.

    Attributes:
        data: its lines, joined.
        id: None where it has none.
    """

    data: str
    id: str | None


class EventReader:
    """Takes bytes as they come, and returns the events that are whole."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line
        self._size = 0
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, received: bytes) -> list[Event]:
        """Take bytes.

        Raises:
            UnreadableError: an event is too long, or no UTF-8.
        """
        events = []
        *lines, rest = received.split(b"\n")
        for line in lines:
            self._count(line)
            event = self._take(b"".join((*self._rest, line)).removesuffix(b"\r"))
            self._rest.clear()
            if event is not None:
                events.append(event)
        self._count(rest)
        self._rest.append(rest)
        return events

    def _count(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_EVENT_BYTES:
            raise UnreadableError(f"event: must have at most {MAX_EVENT_BYTES} bytes")

    def _take(self, line: bytes) -> Event | None:
        if line:
            try:
                name, _, value = line.decode().partition(":")
            except UnicodeDecodeError as error:
                raise UnreadableError(f"event: must be UTF-8, {error.reason}") from None
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
            return None
        event = Event("\n".join(self._data), self._id) if self._data else None
        self._size, self._data, self._id = 0, [], None
        return event
