"""Where the `quire` command begins: it is installed with the SDK, which brings no command line."""

import sys

from launch.extras import require
from quire.contract.errors import ConfigError


def main() -> None:
    """Run the command line, or say what it lacks."""
    try:
        require("quire", "scheduler")
    except ConfigError as error:
        sys.exit(f"error: {error.message}")
    try:
        from launch.cli.main import main

        main()
    except KeyboardInterrupt:  # while modules are read
        sys.stderr.write("interrupted\n")
        sys.exit(130)
