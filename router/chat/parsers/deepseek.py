"""Calls of DeepSeek's V3 and R1, and of V3.1, which writes less around the arguments."""

from collections.abc import Generator

from router.chat.parsers.machine import Machine, checked_name

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL_BEGIN = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekCalls(Machine):
    """Reads calls between DeepSeek's own tokens.

    V3: function, SEPARATOR, the name, a line "```json", the arguments, a line "```". V3.1: the
    name, SEPARATOR, the arguments.
    """

    # The second where the call before it broke.
    start_markers = (CALLS_BEGIN, CALL_BEGIN)
    end_markers = (CALL_END, CALLS_END)

    def _call(self, marker: str) -> Generator[None]:
        if marker == CALLS_BEGIN:
            marker = yield from self._expect(CALL_BEGIN, CALLS_END)
        while marker == CALL_BEGIN:
            before, _ = yield from self._until((SEPARATOR,), is_word=True)
            if (yield from self._peek()) == "{":
                yield from self._json_arguments(checked_name(before))
                yield from self._expect(CALL_END)
            else:
                name, _ = yield from self._name("\n")
                yield from self._expect("```json")
                yield from self._json_arguments(name)
                if (yield from self._expect("```", CALL_END)) == "```":
                    yield from self._expect(CALL_END)
            self._hold()
            marker = yield from self._expect(CALL_BEGIN, CALLS_END)
