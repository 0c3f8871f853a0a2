"""Grammars drawn at random, as a careful user writes them: strings and arrays have bounds."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

MAX_DEPTH = 3
_WORDS = (
    "name",
    "size",
    "is_open",
    "tags",
    "Größe",
    "a b",
    "2nd",
    "quote'd",
    "路径",
    "x/y",
    "null",
)
_TEXTS = ("red", "green and blue", "", 'say "no"', "a\nb", "\\", "🙂", "naïve", "<br>", "0")
_PATTERNS = (
    "^[a-z]{2,8}$",
    "^[A-Z][a-z]{1,5}( [A-Z][a-z]{1,5}){0,2}$",
    r"^\d{3}-\d{4}$",
    "^(a|b|cd)$",
)
_FORMATS = ("date", "uuid", "ipv4")
_FORMAT_CHECKER = FormatChecker()
_ATOMS = ("[a-z]", "[A-F0-9]", "[^0-9x ]", r"\d", "ab", "é", r"\.", "(?:cat|dog|do)", "[ -~]")

# Of each kind of grammar among those that are drawn.
WEIGHTS = {"json": 8, "regex": 1, "choice": 1}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A grammar and what its answers must be.

    Attributes:
        kind: name of the field of StructuredOutputsParams.
        grammar: its value.
        allows: whether a text is one of it, by something else than what generated it.
    """

    kind: str
    grammar: Any
    allows: Callable[[str], bool]


def drawn(draw: random.Random) -> Iterator[Drawn]:
    """Yield grammars without end."""
    while True:
        match draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "json":
                schema = draw_schema(draw)
                yield Drawn("json", schema, is_of_schema(schema))
            case "regex":
                regex = _regex(draw)
                yield Drawn("regex", regex, lambda text, regex=regex: _is_match(regex, text))
            case _:
                texts = _choices(draw)
                yield Drawn("choice", texts, texts.__contains__)


def is_of_schema(schema: dict[str, Any]) -> Callable[[str], bool]:
    """Return what says whether a text is JSON of a schema."""
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=_FORMAT_CHECKER)

    def check(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except ValueError:
            return False

    return check


@_FORMAT_CHECKER.checks("date", ValueError)
def _is_date(value: object) -> bool:
    """Return whether a text is a date of RFC 3339, which has a year 0; Python's dates do not."""
    if isinstance(value, str):
        date.fromisoformat(f"2000{value[4:]}" if value.startswith("0000") else value)
    return True


def draw_schema(draw: random.Random) -> dict[str, Any]:
    """Return a schema whose root is an object, with definitions at times."""
    schema = _object(draw, 0)
    if draw.random() < 0.2:
        schema["$defs"] = {"part": _value(draw, MAX_DEPTH - 1)}
        schema["properties"]["part"] = {"$ref": "#/$defs/part"}
        schema["required"] = [*schema.get("required", ()), "part"]
    return schema


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    deep = depth < MAX_DEPTH
    kinds = (_string, _number, _constant, *((_object, _array, _union) if deep else ()))
    return draw.choice(kinds)(draw, depth)


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(_WORDS, draw.randint(1, 4 if depth == 0 else 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(draw, depth + 1) for name in names},
        "additionalProperties": False,
    }
    required = [name for name in names if draw.random() < 0.7]
    return schema | ({"required": required} if required else {})


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.2:
        items = [_value(draw, depth + 1) for _ in range(draw.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    least = draw.randint(0, 2)
    bounds = {"minItems": least, "maxItems": least + draw.randint(0, 3)}
    return {"type": "array", "items": _value(draw, depth + 1), **bounds}


def _union(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(draw, depth + 1) for _ in range(draw.randint(2, 3))]}


def _string(draw: random.Random, depth: int) -> dict[str, Any]:
    match draw.randrange(4):
        case 0:
            return {"type": "string", "pattern": draw.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": draw.choice(_FORMATS)}
    least = draw.choice((0, 0, 1, 5))
    return {"type": "string", "minLength": least, "maxLength": least + draw.choice((0, 3, 20, 60))}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.choice((-(10**6), -17, 0, 1, 999))
    most = least + draw.choice((0, 1, 9, 1000, 10**7))
    if draw.random() < 0.8:
        above = {"exclusiveMinimum": least - 1} if draw.random() < 0.3 else {"minimum": least}
        return {"type": "integer", **above, "maximum": most}
    return {"type": "number", "minimum": least, "maximum": most, "multipleOf": 0.25}


def _constant(draw: random.Random, depth: int) -> dict[str, Any]:
    match draw.randrange(4):
        case 0:
            return {"type": draw.choice(("boolean", "null"))}
        case 1:
            return {"const": draw.choice((*_TEXTS, 0, -1.5, True, None))}
        case 2:
            return {"type": ["boolean", "null"]}
    return {"enum": draw.sample((*_TEXTS, 1, 20, 300, False), draw.randint(1, 6))}


def _regex(draw: random.Random) -> str:
    parts = []
    for _ in range(draw.randint(1, 5)):
        atom = draw.choice(_ATOMS)
        least = draw.randint(0, 3)
        times = draw.choice(("", "?", f"{{{least},{least + draw.randint(0, 8)}}}"))
        parts.append(f"(?:{atom}){times}")
    body = "".join(parts)
    return f"(?:{body}|none)!" if draw.random() < 0.3 else f"{body}!"


def _is_match(regex: str, text: str) -> bool:
    return re.fullmatch(regex, text) is not None


def _choices(draw: random.Random) -> list[str]:
    texts = {text for text in draw.sample(_TEXTS, draw.randint(1, 6)) if text} or {"only"}
    # One that is the beginning of another.
    longest = max(texts, key=len)
    return sorted(texts | {longest + " and more"})
