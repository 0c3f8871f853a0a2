"""Where markers stand in a text, and where one may have begun at its end."""

from collections.abc import Sequence


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
