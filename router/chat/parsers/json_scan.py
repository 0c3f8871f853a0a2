"""Where a JSON value ends, found character by character."""

import json
import re

# Deeper values are no arguments of a call.
MAX_DEPTH = 256
SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = ("true", "false", "null")
_MAX_SCALAR_CHARS = 512


class JsonScanner:
    """Reads one JSON value, however its text is split.

    `read` takes text from where the last call ended. An object, an array or a string ends with its
    last character. A number or a literal ends before the first character that is none of it.
    Control characters in strings, which models write and JSON forbids, are escaped.

    Attributes:
        is_done: the value is complete.
        is_broken: the text is no JSON; what was read before is the longest part that could be.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        # "}" or "]" for each object or array that is open.
        self._open: list[str] = []
        # What may come: "value", "first" (value or end), "key", "first_key", ":", ",", "string".
        self._wants = "value"
        self._is_key = False
        self._escape: str | None = None
        self._scalar = ""
        # Of the text that is being read: what is done with, and up to which place.
        self._pieces: list[str] = []
        self._copied = 0

    def read(self, text: str, start: int) -> tuple[str, int]:
        """Read on.

        Returns:
            What was read, as JSON; and the place after the last character that belongs to the
            value.
        """
        place = self._copied = start
        while place < len(text) and not (self.is_done or self.is_broken):
            if self._wants == "string":
                place = self._read_string(text, place)
            elif self._scalar:
                place = self._read_scalar(text, place)
            elif text[place] in SPACE or self._take(text[place]):
                place += 1
            else:
                self.is_broken = True
        self._pieces.append(text[self._copied : place])
        pieces, self._pieces = self._pieces, []
        return "".join(pieces), place

    def _take(self, char: str) -> bool:
        wants = self._wants
        if self._open and char == self._open[-1]:
            if wants not in (",", "first" if char == "]" else "first_key"):
                return False
            self._open.pop()
            self._value_ended()
        elif wants == ":":
            self._wants = "value"
            return char == ":"
        elif wants == ",":
            self._wants = "key" if self._open[-1] == "}" else "value"
            return char == ","
        elif char == '"':
            self._is_key = wants in ("key", "first_key")
            self._wants = "string"
        elif wants in ("key", "first_key"):
            return False
        elif char in "{[":
            if len(self._open) == MAX_DEPTH:
                return False
            self._open.append("}" if char == "{" else "]")
            self._wants = "first_key" if char == "{" else "first"
        elif char in "-0123456789tfn":
            self._scalar = char
        else:
            return False
        return True

    def _value_ended(self) -> None:
        self._wants = ","
        self.is_done = not self._open

    def _read_string(self, text: str, place: int) -> int:
        if self._escape is not None:
            return self._read_escape(text, place)
        match = _PLAIN.match(text, place)
        assert match is not None, "it matches nothing at least"
        place = match.end()
        if place == len(text):
            return place
        if text[place] == "\\":
            self._escape = ""
        elif text[place] != '"':
            self._put(text, place, json.dumps(text[place])[1:-1])
        elif self._is_key:
            self._wants = ":"
        else:
            self._value_ended()
        return place + 1

    def _read_escape(self, text: str, place: int) -> int:
        escape = f"{self._escape}{text[place]}"
        if escape < " ":
            # A line that ends with a backslash: it has begun what the control character needs.
            self._put(text, place, json.dumps(escape)[2:-1])
            self._escape = None
        elif escape[0] == "u":
            self.is_broken = len(escape) > 1 and escape[-1] not in "0123456789abcdefABCDEF"
            self._escape = None if len(escape) == 5 else escape
        else:
            self.is_broken = escape not in '"\\/bfnrt'
            self._escape = None
        return place if self.is_broken else place + 1

    def _put(self, text: str, place: int, written: str) -> None:
        """Replace the character at a place."""
        self._pieces += (text[self._copied : place], written)
        self._copied = place + 1

    def _read_scalar(self, text: str, place: int) -> int:
        char = text[place]
        if (char.isascii() and char.isalnum()) or char in "+-.":
            self._scalar += char
            self.is_broken = len(self._scalar) > _MAX_SCALAR_CHARS
            return place + 1
        scalar, self._scalar = self._scalar, ""
        if scalar in _LITERALS or _NUMBER.fullmatch(scalar):
            self._value_ended()
        else:
            self.is_broken = True
        return place
