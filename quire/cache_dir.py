"""Where files are kept that can be made again."""

import os
from pathlib import Path

from quire.contract.errors import ConfigError


def cache_dir(kind: str) -> Path:
    """Return the directory of a kind of files, beside Hugging Face's cache; it may not exist.

    Raises:
        ConfigError: the user has no home directory, as in some containers.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "quire" / kind
    except RuntimeError:
        raise ConfigError("XDG_CACHE_HOME: must be set, this user has no home directory") from None
