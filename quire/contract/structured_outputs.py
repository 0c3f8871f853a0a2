"""What an output must be: a JSON value of a schema, a match of a regex, one of some texts."""

import json as json_format
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from quire.contract.errors import InvalidRequestError

MAX_GRAMMAR_CHARS = 2**16
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """The grammar of an output: exactly one of these. Names and meanings are vLLM's.

    Attributes:
        json: a JSON schema, as text or as what `json.loads` makes of it; the output is a JSON value
            that it allows.
        json_object: the output is a JSON object.
        regex: the output matches it from its first to its last character; Rust's syntax, without
            look-around and back-references.
        choice: the output is one of these texts.
        grammar: the output is derived from it; Lark's syntax, as llguidance reads it, or GBNF.
        structural_tag: the output is text in which tags have schemas; JSON, as xgrammar has it.

    Raises:
        InvalidRequestError: none is given, or several, or one that is too large; names the field.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.choice is None:
            object.__setattr__(self, "choice", ())
        elif not isinstance(self.choice, str) and isinstance(self.choice, Iterable):
            object.__setattr__(self, "choice", tuple(self.choice))
        given = self.given
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs",
                "must have exactly one of json, json_object, regex, choice, grammar, "
                "structural_tag, "
                f"got {' and '.join(given) or 'none'}",
            )
        if self.json is not None and not isinstance(self.json, str):
            object.__setattr__(self, "json", _as_text(self.json))
        if self.structural_tag is not None and not isinstance(self.structural_tag, str):
            object.__setattr__(self, "structural_tag", _as_text(self.structural_tag))
        self._check_sizes()

    @property
    def given(self) -> list[str]:
        """Names of the fields that are set."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return [name for name, value in values if value not in (None, False, ())]

    @property
    def field(self) -> str:
        """Name of the one that is set, as messages have it."""
        return f"structured_outputs.{self.given[0]}"

    def _check_sizes(self) -> None:
        field = self.field
        if isinstance(self.choice, str):  # else each of its characters would be one
            raise InvalidRequestError(field, f"must be a list of texts, got {self.choice[:32]!r}")
        if self.choice:
            check_num_choices(len(self.choice))
            for text in self.choice:
                _check_text(field, text)
            texts = "".join(self.choice)
        else:
            value = getattr(self, self.given[0])
            if value is True:
                return
            _check_text(field, value)
            texts = value
        check_num_chars(field, len(texts))


def check_num_choices(count: int) -> None:
    """Check how many choices there are.

    Raises:
        InvalidRequestError: too many.
    """
    if count > MAX_CHOICES:
        raise InvalidRequestError(
            "structured_outputs.choice", f"must have at most {MAX_CHOICES} items, got {count}"
        )


def check_num_chars(field: str, count: int) -> None:
    """Check how long a grammar is, or all choices together.

    Raises:
        InvalidRequestError: too long.
    """
    if count > MAX_GRAMMAR_CHARS:
        raise InvalidRequestError(
            field, f"must be at most {MAX_GRAMMAR_CHARS} characters, got {count}"
        )


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(field, f"must be text, got {type(text).__name__}")
    if not text:
        raise InvalidRequestError(field, "must be at least 1 character, got 0")
    if not _is_utf8(text):
        raise InvalidRequestError(field, "must be Unicode text, got half of a surrogate pair")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(schema: object) -> str:
    field = "structured_outputs.json"
    try:
        return json_format.dumps(schema)
    except RecursionError:
        raise InvalidRequestError(field, "must not be nested that deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(field, f"must be a JSON schema, got {error}") from None
