"""Where the `quire` command begins: it is installed with the SDK, which brings no command line."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line, or say what it lacks. Ctrl-C is one line, also while it is read."""
    try:
        _take_any_text()
        _run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _take_any_text() -> None:
    """Have no text that is read or shown fail: what the terminal cannot write is replaced."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _run() -> None:
    from launch.extras import require
    from quire.contract.errors import ConfigError

    try:
        require("quire", "scheduler")
    except ConfigError as error:
        sys.exit(f"error: {error.message}")
    from launch.cli.main import main

    main()
