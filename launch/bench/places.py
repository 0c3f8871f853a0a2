"""Where results go, looked at before anything is measured."""

from pathlib import Path

from quire.contract.errors import ConfigError


def check_directory(name: str, path: Path) -> None:
    """Make a directory, if it is not there.

    Args:
        name: of the option, for the message.
        path: of the directory.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{name}: must be a directory that can be made, got {path}: {error.strerror}"
        ) from None


def check_file(name: str, path: Path) -> None:
    """Check that a file can be written; it is left as it is, or is not there.

    Args:
        name: of the option, for the message.
        path: of the file.

    Raises:
        ConfigError: it cannot.
    """
    try:
        if path.exists():
            path.open("a").close()
        else:
            path.open("x").close()
            path.unlink()
    except OSError as error:
        raise unwritable(name, path, error) from None


def unwritable(name: str, path: Path, error: OSError) -> ConfigError:
    """Return the error of a file that cannot be written."""
    return ConfigError(
        f"{name}: must be a file that can be written, got {path}: {error.strerror or error}"
    )
