"""Outputs whose grammar forces calls: beside reasoning there is nothing else in them."""

from collections.abc import Iterable, Sequence

from router.chat.parsers.events import ContentDelta, OutputParser, ParserEvent


class ForcedCalls:
    """Leaves out what is no content of a forced call: its beginning, cut off, and spaces around it.

    Args:
        parser: reads the output.
    """

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._has_content = False

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[ParserEvent]:
        """Take the next text; as of OutputParser."""
        return [*self._without_spaces(self._parser.feed(text, token_ids))]

    def finish(self, is_cut: bool = False) -> list[ParserEvent]:
        """Read what is left; as of OutputParser: what would be content now has been cut off."""
        events = self._parser.finish(is_cut)
        return [event for event in events if not isinstance(event, ContentDelta)]

    def _without_spaces(self, events: Iterable[ParserEvent]) -> Iterable[ParserEvent]:
        """Yield events without the spaces before other content, which only a broken call has."""
        for event in events:
            if isinstance(event, ContentDelta) and not self._has_content:
                text = event.text.lstrip()
                self._has_content = bool(text)
                if text:
                    yield ContentDelta(text)
            else:
                yield event
