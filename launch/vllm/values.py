"""Values as vLLM's users spell them."""

import json
import re
from typing import Any

from quire.contract.errors import ConfigError

_SCALES: dict[str | None, int] = {
    None: 1,
    **{letter: 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)},
    **{letter: 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)},
}


def count(name: str, value: Any) -> int:
    """Return a number that may be written as 8k (8,000), 8K (8,192), 25.6k or 1_000.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value)
    # Longer ones are no number of anything, and Python reads none of thousands of digits.
    match = re.fullmatch(r"(-?\d[\d_]*)(\.\d+)?([kKmMgGtT])?", text) if len(text) < 32 else None
    if not match or (match[2] and (not match[3] or match[3].isupper())):
        raise ConfigError(f"{name}: must be an integer, such as 8192, 8k or 8K, got {text[:64]!r}")
    whole, scale = match[1].replace("_", ""), _SCALES[match[3]]
    return round(float(whole + match[2]) * scale) if match[2] else int(whole) * scale


def from_json(name: str, value: Any) -> Any:
    """Return what a JSON text holds; what is no text holds itself.

    Raises:
        ConfigError: it is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ConfigError(f"{name}: must be JSON, got {value!r}") from None


def plain(value: Any) -> Any:
    """Return a value that was written as text as what it means: a number, a switch, nothing."""
    if isinstance(value, list) and len(value) == 1:
        return plain(value[0])
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("none", "null", ""):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except ValueError:
        return text
