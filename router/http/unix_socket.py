"""The place of a Unix domain socket, which is looked at before anything is started, too."""

import socket
import stat
from pathlib import Path

from quire.contract.errors import ConfigError


def check_place(path: str) -> None:
    """Check that a socket can be made at a path, and leave none there.

    Raises:
        ConfigError: it cannot.
    """
    try:
        remove_dead_socket(Path(path))
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        Path(path).unlink()
    except OSError as error:
        raise ConfigError(wrong_place(path, error)) from None


def wrong_place(path: str, error: OSError) -> str:
    """Return why there can be no socket at a path."""
    return f"uds: cannot listen on {path}: {error.strerror or error}"


def remove_dead_socket(path: Path) -> None:
    """Remove a socket that nobody listens on.

    Raises:
        OSError: something else is there, or somebody listens.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(None, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(None, "another process listens there")
