"""What a client reads in order, and may have to read again from where it stands after a break.

Of what has been read, what is kept is bounded. A client never stands before what it once had.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Replay(Generic[T]):
    """Items, each read once unless `go_to` goes back.

    Args:
        max_kept: items to keep after they have been read.
    """

    def __init__(self, max_kept: int = 0) -> None:
        self._max_kept = max_kept
        self._items: list[T] = []
        self._first = 0  # number of the first one that is here
        self._next = 0  # number of the next one to read

    def __len__(self) -> int:
        """Items that there were so far, those that are gone included."""
        return self._first + len(self._items)

    def append(self, item: T) -> None:
        """Add the next item."""
        self._items.append(item)

    def extend(self, items: Iterable[T]) -> None:
        """Add the next items."""
        self._items.extend(items)

    def read(self) -> tuple[T, ...]:
        """Return what has not been read."""
        unread = tuple(self._items[self._next - self._first :])
        self._next = len(self)
        num_over = len(self._items) - self._max_kept
        if num_over > self._max_kept:  # seldom, so that an item is moved once on average
            self._forget(num_over)
        return unread

    def covers(self, number: int) -> bool:
        """Return whether a client may stand behind so many items."""
        return self._first <= number <= len(self)

    def go_to(self, number: int) -> None:
        """Go on behind so many items, as one that has had them; they are needed no more."""
        self._forget(number - self._first)
        self._first = self._next = number

    def _forget(self, count: int) -> None:
        del self._items[: max(0, count)]
        self._first += count


class TextReplay:
    """A text, each part of it read once unless `go_to` goes back.

    Args:
        keeps: whether to keep what has been read.
    """

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._parts: list[str] = []
        self._num_read = 0  # of the parts
        self._first_byte = 0  # of the parts, in the whole text as UTF-8

    def append(self, text: str) -> None:
        """Add what follows."""
        self._parts.append(text)

    def read(self) -> str:
        """Return what has not been read."""
        text = "".join(self._parts[self._num_read :])
        self._parts[self._num_read :] = [text] if self._keeps and text else []
        self._num_read = len(self._parts)
        return text

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8; only of one that is kept, or has not been read."""
        return self._first_byte + len("".join(self._parts).encode())

    def after(self, num_bytes: int) -> str | None:
        """Return what follows so many bytes; None where no character ends or it is not here."""
        text, place = "".join(self._parts).encode(), num_bytes - self._first_byte
        if not 0 <= place <= len(text):
            return None
        try:
            return text[place:].decode()
        except UnicodeDecodeError:
            return None

    def go_to(self, num_bytes: int, rest: str) -> None:
        """Go on behind so many bytes, as one that has had them, with the rest of the text."""
        self._parts, self._num_read, self._first_byte = [rest], 0, num_bytes
