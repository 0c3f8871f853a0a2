"""Defaults of sampling parameters, as a model's generation_config.json has them; vLLM's rules."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.contract.errors import ConfigError, InvalidRequestError
from quire.contract.sampling_params import COUNTS, FILLED_IN, SamplingParams

_FILE = "generation_config.json"
AUTO, NONE = "auto", "vllm"
"""Where defaults come from, beside a directory: the model's own file, or nowhere."""
# What the file calls otherwise.
_NAMES = {"max_new_tokens": "max_tokens"}
# What switches a filter off there; here its absence does.
_OFF = {"top_k": (0, -1)}


def load_generation_defaults(
    model: Path, source: str, overrides: Mapping[str, Any]
) -> dict[str, float]:
    """Return the defaults of sampling parameters that requests leave open, by name.

    Of a file, fields that are none of FILLED_IN are passed over, as are those without a value.

    Args:
        model: directory, or GGUF file, which has none.
        source: "auto", "vllm", or a directory with such a file.
        overrides: values that take the place of the file's.

    Raises:
        ConfigError: a file cannot be read, or a value is out of bounds.
    """
    directory = model if source == AUTO else Path(source)
    found: Mapping[str, Any] = {}
    if source != NONE:
        found = _read(directory / _FILE, is_optional=source == AUTO)
    defaults = _known(found, f"generation_config: {directory / _FILE}")
    for name, value in overrides.items():
        if _NAMES.get(name, name) not in FILLED_IN:
            known = ", ".join(sorted({*FILLED_IN, *_NAMES} - set(_NAMES.values())))
            raise ConfigError(f"override_generation_config: must have of {known}, got {name}")
        defaults.pop(_NAMES.get(name, name), None)
        defaults |= _known({name: value}, "override_generation_config")
    return defaults


def _read(path: Path, is_optional: bool) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        if is_optional and isinstance(error, FileNotFoundError | NotADirectoryError):
            return {}
        raise ConfigError(f"generation_config: {path} must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"generation_config: {path} must be a JSON object")
    return found


def _known(found: Mapping[str, Any], source: str) -> dict[str, float]:
    defaults = {}
    for field, value in found.items():
        name = _NAMES.get(field, field)
        if name not in FILLED_IN or value is None or value in _OFF.get(name, ()):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{source}: {field} must be a number, got {value!r}")
        try:
            number = int(value) if name in COUNTS and value == int(value) else value
            SamplingParams().filled({name: number})
        except (InvalidRequestError, ValueError, OverflowError) as error:
            raise ConfigError(f"{source}: {error}") from None
        if name in COUNTS and not isinstance(number, int):
            raise ConfigError(f"{source}: {field} must be an integer, got {value!r}")
        defaults[name] = number
    return defaults
