"""What this process writes to."""

import sys
from typing import TextIO

from quire.contract.errors import ConfigError


def open_stdout() -> TextIO:
    """Return where answers go.

    Raises:
        ConfigError: whoever started this process has closed it.
    """
    if sys.stdout is None:
        raise ConfigError("stdout: must be open, got a closed one")
    return sys.stdout
