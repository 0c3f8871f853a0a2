"""vLLM's options as variables of the environment."""

import os
from collections.abc import Mapping
from typing import Any

from launch.vllm.table import LISTS, SWITCHES
from quire.contract.errors import ConfigError

_SWITCHED = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


def read(prefix: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that variables give, by name; an empty one gives none.

    Args:
        prefix: which all variables begin with.
        names: of options, by how their variables go on.

    Raises:
        ConfigError: a switch is neither on nor off.
    """
    found: dict[str, Any] = {}
    for end, name in names.items():
        text = os.environ.get(f"{prefix}{end}", "")
        if not text:
            continue
        if name in LISTS:
            # JSON is one word, as on the line, whatever spaces it has.
            found[name] = [text.strip()] if text.lstrip().startswith("[") else text.split()
        elif name not in SWITCHES:
            found[name] = text
        elif (value := _SWITCHED.get(text.lower())) is not None:
            found[name] = value
        else:
            raise ConfigError(
                f"{name}: must be true or false, got {text!r} (of {prefix}{end} in the environment)"
            )
    return found
