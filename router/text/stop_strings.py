"""Finds stop strings in a text that arrives in pieces, and lets none of a stop string out."""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Watches one text for stop strings.

    The text ends at the first character that completes a stop string; when that character completes
    several, at the longest of them. This does not depend on how the text is cut into pieces.

    An Aho-Corasick automaton: its state is the longest end of the text that begins some stop
    string, which is exactly what must be held back. Constant time per character, however many and
    long the strings (Aho and Corasick, 1975).
    """

    def __init__(self, stop: Sequence[str], include_in_output: bool = False):
        """Build the automaton.

        Args:
            stop: strings that end the text, none of them empty; may be none.
            include_in_output: leave the stop string in the text.
        """
        self._include = include_in_output
        self._held = ""
        self._state = 0
        # Nodes are prefixes of stop strings; node 0 is the empty one.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        # Length of the longest stop string that ends at a node; 0 for none.
        self._matched = [0]
        for text in stop:
            self._add(text)
        # Node of the longest proper suffix that is a node too.
        self._fallback = [0] * len(self._next)
        self._link()

    def _add(self, text: str) -> None:
        node = 0
        for character in text:
            if character not in self._next[node]:
                self._next[node][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._matched.append(0)
            node = self._next[node][character]
        self._matched[node] = len(text)

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._next[node].items():
                self._fallback[child] = self._step(self._fallback[node], character)
                self._matched[child] = self._matched[child] or self._matched[self._fallback[child]]
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text.

        Returns:
            The text that may go out now, and the stop string that ended it, if one did; nothing
            follows then.
        """
        if len(self._next) == 1:
            return text, None
        state = self._state
        for index, character in enumerate(text):
            state = self._step(state, character)
            length = self._matched[state]
            if length:
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen if self._include else seen[:-length], seen[-length:]
        self._state = state
        seen = self._held + text
        cut = len(seen) - self._depth[state]
        self._held = seen[cut:]
        return seen[:cut], None

    def flush(self) -> str:
        """Return the text held back, when none follows."""
        held, self._held = self._held, ""
        return held
