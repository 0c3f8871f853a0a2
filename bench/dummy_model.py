"""Model directories without weights, for `--load-format dummy`."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.cluster.config import embedded_model


def write_model(directory: Path, config: Mapping[str, Any]) -> None:
    """Write a configuration, and the embedded model's tokenizer beside it.

    Args:
        directory: that exists.
        config: of config.json; its vocabulary is as large as the embedded model's, or larger.
    """
    for path in embedded_model().glob("*token*"):
        shutil.copy(path, directory)
    (directory / "config.json").write_text(json.dumps(config))
