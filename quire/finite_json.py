"""JSON of others, whose numbers are all finite: what was read can be written as JSON again."""

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text, as `json.loads` does.

    Raises:
        ValueError: it is no JSON (JSONDecodeError), or holds a number that is none or overflows.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:32]} is a number that overflows")
    return value
