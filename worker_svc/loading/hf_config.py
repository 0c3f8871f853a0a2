"""Typed access to the config.json of a Hugging Face model directory.

Read here and not through transformers: start-up stays short, and every error is one line that names
the file and the key.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from quire.contract.errors import ModelLoadError


class HfConfig:
    """A JSON object of a model's configuration, or a section of it."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = values
        self._origin = origin

    @classmethod
    def read(cls, path: Path) -> "HfConfig":
        """Read a JSON object from a file.

        Raises:
            ModelLoadError: the file cannot be read or is not a JSON object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(f"{path}: not readable as JSON: {one_line(error)}") from error
        if not isinstance(values, dict):
            raise ModelLoadError(f"{path}: must hold a JSON object")
        return cls(values, str(path))

    def extended(self, **values: Any) -> "HfConfig":
        """Return this object with more keys, of the same file."""
        return HfConfig({**self._values, **values}, self._origin)

    @property
    def directory(self) -> Path:
        """The directory of the file."""
        return Path(self._origin).parent

    def __contains__(self, key: str) -> bool:
        """Whether `key` is present and not null."""
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether `key` is present and null; to all other readers null is the same as absent."""
        return key in self._values and self._values[key] is None

    def canonical(self, without: Collection[str] = ()) -> str:
        """Return this object as JSON, the same for the same values in any order.

        Args:
            without: keys to leave out.
        """
        values = {key: value for key, value in self._values.items() if key not in without}
        return json.dumps(values, sort_keys=True)

    def names(self) -> list[str]:
        """Return the keys of this object."""
        return list(self._values)

    def spelling(self, *keys: str) -> str:
        """Return the first of several names of one key that is present, or else the first name."""
        return next((key for key in keys if key in self), keys[0])

    def error(self, key: str, problem: str) -> ModelLoadError:
        """Return the error for a problem with a key of this object."""
        return ModelLoadError(f"{self._origin}: {key}: {problem}")

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least `least`; without a default the key must be there.

        Raises:
            ModelLoadError: absent, not an integer or a smaller one.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise self.error(key, f"must be {kind}, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; without a default the key must be there.

        Raises:
            ModelLoadError: absent or not a number.
        """
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, got {value!r}")
        return float(value)

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers.

        Raises:
            ModelLoadError: absent or not a list of numbers.
        """
        value = self._get(key, None)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and not isinstance(item, bool) for item in value
        ):
            raise self.error(key, "must be a list of numbers")
        return [float(item) for item in value]

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean.

        Raises:
            ModelLoadError: present and not a boolean.
        """
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the key must be there.

        Raises:
            ModelLoadError: absent or not a string.
        """
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, got {value!r}")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, empty when the key is absent.

        Raises:
            ModelLoadError: present and not a list of strings.
        """
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"must be a list of strings, got {value!r}")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return token ids given as one integer or a list; empty when the key is absent.

        Raises:
            ModelLoadError: present and neither.
        """
        value = self._get(key, [])
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self.error(key, f"must be a token id or a list of them, got {value!r}")
        return tuple(ids)

    def section(self, key: str) -> "HfConfig":
        """Return a nested object, empty when the key is absent.

        Raises:
            ModelLoadError: present and not an object.
        """
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, got {value!r}")
        return HfConfig(value, f"{self._origin}: {key}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


def one_line(error: BaseException) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())
