"""Where files are kept that can be made again."""

import os
from pathlib import Path


def cache_dir(kind: str) -> Path:
    """Return the directory of a kind of files, beside Hugging Face's cache; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "quire" / kind
