"""What formats get from what they share."""

from router.chat.parsers.events import CallIds, ContentDelta
from router.chat.parsers.machine import Machine


class Marked(Machine):
    """A format that has a marker and reads no calls."""

    start_markers = ("<call>",)


def test_a_marker_without_a_call_is_content() -> None:
    parser = Marked(CallIds("a"))
    events = [*parser.feed("one <ca"), *parser.feed("ll> two"), *parser.finish()]
    assert all(isinstance(event, ContentDelta) for event in events)
    assert "".join(event.text for event in events) == "one <call> two"
