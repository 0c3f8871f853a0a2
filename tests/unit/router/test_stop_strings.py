"""Stop strings against the plain definition, for any way to cut the text into pieces."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from router.text.stop_strings import StopStrings


def naive(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """End at the first character that completes a stop string; the longest one it completes."""
    for end in range(1, len(text) + 1):
        matches = [s for s in stop if text[:end].endswith(s)]
        if matches:
            longest = max(matches, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


short = st.text("ab", min_size=1, max_size=5)


@given(
    text=st.text("abc", max_size=30),
    stop=st.lists(short, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
    include=st.booleans(),
)
@example(text="aab", stop=["ab"], cuts=[1, 2], include=False)
@example(text="abcd", stop=["abcd", "bc"], cuts=[1, 2, 3], include=False)
@example(text="ababc", stop=["abc"], cuts=[2, 4], include=True)
def test_equals_the_definition(text: str, stop: list[str], cuts: list[int], include: bool) -> None:
    scanner = StopStrings(stop, include)
    out, found = "", None
    for piece in in_pieces(text, cuts):
        new, found = scanner.push(piece)
        out += new
        expected, _ = naive(text, stop, include)
        assert expected.startswith(out), "text went out that is part of a stop string"
        if found is not None:
            break
    if found is None:
        out += scanner.flush()
    assert (out, found) == naive(text, stop, include)


@given(text=st.text("abc", max_size=30), stop=st.lists(short, min_size=1, max_size=4))
def test_holds_back_no_more_than_it_must(text: str, stop: list[str]) -> None:
    scanner = StopStrings(stop)
    out, seen = "", ""
    for character in text:
        new, found = scanner.push(character)
        if found is not None:
            return
        out += new
        seen += character
        begins = [s[:n] for s in stop for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert len(seen) - len(out) == max(map(len, begins), default=0)


def test_without_stop_strings_text_passes() -> None:
    scanner = StopStrings([])
    assert scanner.push("anything") == ("anything", None)
    assert scanner.flush() == ""


def test_a_stop_string_over_several_pieces_never_leaks() -> None:
    scanner = StopStrings(["\nUser:"])
    assert scanner.push("Hello\n") == ("Hello", None)
    assert scanner.push("Us") == ("", None)
    assert scanner.push("er: hi") == ("", "\nUser:")


def test_a_false_alarm_is_given_out() -> None:
    scanner = StopStrings(["\nUser:"])
    assert scanner.push("\nUs") == ("", None)
    assert scanner.push("ual") == ("\nUsual", None)
