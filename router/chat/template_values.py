"""What templates read of a message where plain Python values would not do."""

import json
from typing import Any

import jinja2
from jinja2 import tests

from quire import finite_json

# Anthropic's name for arguments that are no JSON object; /v1/messages answers with it, too.
INVALID_JSON = "INVALID_JSON"


class Absent(str):
    """The content of a message that has none.

    Templates ask for it as for none (`is none`, `is not defined`, `== none`), or write it and add
    it to texts unasked: it is none to the first, and an empty text to the others.
    """

    __slots__ = ()

    def __new__(cls) -> "Absent":
        """Return an empty text."""
        return super().__new__(cls, "")

    def __eq__(self, other: object) -> bool:
        return other is None or other == ""

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Arguments(dict[str, Any]):
    """The arguments of a call: a mapping, and the client's text where a template takes a text.

    Args:
        text: that the client sent. Where it is no JSON object, the mapping shows it by
            INVALID_JSON: a call that broke must not end the conversation that it is in.

    Raises:
        RecursionError: it is nested too deeply.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            value = finite_json.loads(text) if text.strip() else None
            # Half of a surrogate pair, which no prompt can hold, is text as it stands: its escape.
            json.dumps(value, ensure_ascii=False).encode()
        except ValueError:
            value = text
        if value is None:
            value, self._text = {}, "{}"
        super().__init__(value if isinstance(value, dict) else {INVALID_JSON: text})

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> Any:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> Any:
        return other + self._text if isinstance(other, str) else NotImplemented


def add_tests(environment: jinja2.Environment) -> None:
    """Have an environment's tests know a content that is absent."""
    environment.tests.update(
        none=lambda value: value is None or isinstance(value, Absent),
        defined=lambda value: tests.test_defined(value) and not isinstance(value, Absent),
        undefined=lambda value: tests.test_undefined(value) or isinstance(value, Absent),
        string=lambda value: tests.test_string(value) and not isinstance(value, Absent),
    )
