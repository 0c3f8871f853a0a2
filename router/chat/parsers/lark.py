"""Rules of a grammar in llguidance's Lark: tokens by id, text up to what ends it, names."""

import json
import re
from collections.abc import Mapping
from typing import Any

from quire.contract.structured_outputs import check_num_chars
from quire.grammar import lark_regex, regex_of, with_json_options
from router.chat.parsers.shapes import Visits

TEXT = "/(?s:.*)/"


class Rules:
    """Rules that are being made, each with a name of its own.

    Args:
        added_tokens: ids of the tokenizer's added tokens, special or not, by text: a grammar
            matches these by id alone.

    Attributes:
        visits: of schemas, for all of the grammar.
    """

    def __init__(self, added_tokens: Mapping[str, int]) -> None:
        self._added = added_tokens
        self._rules: list[str] = []
        self._num_chars = 0
        self.visits = Visits()

    def lines(self) -> list[str]:
        """Return the rules so far."""
        return self._rules

    def rule(self, expression: str) -> str:
        """Return the name of a rule."""
        return self._named("rule", expression)

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal: one regex, which may be made of others by `&` and `~`."""
        return self._named("T", expression)

    def json(self, schema: Any) -> str:
        """Return what derives JSON of a schema.

        Raises:
            InvalidRequestError: all schemas so far are too long together.
        """
        text = json.dumps(with_json_options(schema))
        self._num_chars += len(text)
        check_num_chars("tools", self._num_chars)
        return f"%json {text}"

    def mark(self, text: str) -> str:
        """Return what derives text of a format: a token for each part that is one, else letters."""
        known = [each for each in self._added if each[:1] in ("<", "[") and each in text]
        if not known:
            return quoted(text)
        pattern = "|".join(re.escape(each) for each in sorted(known, key=len, reverse=True))
        parts = [each for each in re.split(f"({pattern})", text) if each]
        return " ".join(
            f"<[{self._added[each]}]>" if each in self._added else quoted(each) for each in parts
        )

    def text_until(self, end: str) -> str:
        """Return what derives any text and what ends it."""
        return self.ended(TEXT, end)

    def ended(self, regex: str, end: str, stop: str = "") -> str:
        """Return what derives a text and what ends it.

        Args:
            regex: an expression of terminals that the text matches.
            end: behind it.
            stop: what the text must not have in it; `end` by default.
        """
        # As one terminal with what ends it, since of two the first would take all that it can.
        text = self.terminal(f"{regex} & ~{_with(stop or end)}")
        tail = self.mark(end)
        if "<[" not in tail:
            return self.terminal(f"{text} {tail}")
        letters, _, rest = tail.partition("<[")
        return f"{self.terminal(f'{text} {letters}') if letters else text} <[{rest}"

    def text_without(self, *parts: str, begin: str = "") -> str:
        """Return what derives any text that has none of these in it.

        Args:
            parts: texts.
            begin: a regex that no beginning matches.
        """
        terms = [TEXT, *(f"~{_with(each)}" for each in parts)]
        if begin:
            terms.append("~" + lark_regex(f"{begin}(?s:.*)"))
        return self.terminal(" & ".join(terms))

    def _named(self, kind: str, expression: str) -> str:
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name


def quoted(text: str) -> str:
    """Return what derives a text to the letter."""
    return json.dumps(text, ensure_ascii=False)


def _with(part: str) -> str:
    return lark_regex(f"(?s:.*){regex_of(part)}(?s:.*)")
