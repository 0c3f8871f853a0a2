"""The file of API keys: one JSON object a line.

It holds the name of a key, its SHA-256, when it was made, when it ends if it does, and its rights
where they are not the usual; the key itself is nowhere. A key is 32 random bytes, so that its
digest needs neither salt nor a slow hash.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import TypeVar

from quire.contract.callers import ANYONE, Caller
from quire.contract.errors import ConfigError
from quire.contract.quotas import UNLIMITED, Quotas

MAX_KEYS = 1000
MAX_LINE_BYTES = 512
MAX_FILE_BYTES = MAX_KEYS * (MAX_LINE_BYTES + 1)

Number = TypeVar("Number", int, float)
Default = TypeVar("Default", int, float, None)

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_QUOTAS = tuple(Quotas.__dataclass_fields__)
_FIELDS = {"name", "sha256", "created", "expires", "weight", "min_priority", *_QUOTAS}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the file holds it.

    Attributes:
        name: whose it is; written to logs and metrics.
        sha256: digest of the key, 32 bytes.
        created: when it was made.
        expires: from when on it is refused; None for never.
        weight: of its tenant's share; see Caller.
        min_priority: see Caller.
        quotas: how much it may ask for.

    Raises:
        ConfigError: the name could not be a label of metrics, or looks like another one; or a right
            is out of bounds.
    """

    name: str
    sha256: bytes
    created: datetime
    expires: datetime | None = None
    weight: float = ANYONE.weight
    min_priority: int = ANYONE.min_priority
    quotas: Quotas = UNLIMITED

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "name: 1 to 63 of a-z, 0-9, '.', '_' and '-', first and last a letter or digit"
            )
        _ = self.caller  # checks the rights

    @property
    def caller(self) -> Caller:
        """Who presents it."""
        return Caller(self.name, self.weight, self.min_priority, self.quotas)

    def is_expired(self, now: datetime) -> bool:
        """Return whether the key is refused by now."""
        return self.expires is not None and now >= self.expires


def digest(key: str) -> bytes:
    """Return what the file holds of a key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def read_content(path: Path) -> bytes:
    """Return the bytes of a file of keys.

    Raises:
        ConfigError: it cannot be read, or is larger than such a file can be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: must be at most {MAX_FILE_BYTES} bytes")
    return content


def parse_keys(content: bytes, path: Path) -> tuple[ApiKey, ...]:
    """Return the keys that a file holds, in its order; empty lines are skipped.

    Raises:
        ConfigError: it is malformed; names `path` and the line, and not what the line holds, which
            may be a key that was put there by mistake.
    """
    keys: dict[str, ApiKey] = {}
    digests: set[bytes] = set()
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            key = _parse_line(line)
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        if key.name in keys or key.sha256 in digests:
            raise ConfigError(f"{path}, line {number}: its name or sha256 is there twice")
        keys[key.name] = key
        digests.add(key.sha256)
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{path}: must hold at most {MAX_KEYS} keys, got {len(keys)}")
    return tuple(keys.values())


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file; errors as `read_content` and `parse_keys`."""
    return parse_keys(read_content(path), path)


@contextmanager
def editing(path: Path) -> Iterator[list[ApiKey]]:
    """Yield the keys of a file as a list to change, and write what it has become on the way out.

    The file is replaced at once, so that a reader sees either the old one or the new one, and only
    one editor has it at a time. A new file can be read by its owner alone.

    Args:
        path: it need not exist yet.

    Raises:
        ConfigError: it is not such a file, or cannot be written. The file is as it was.
    """
    path = path.resolve()  # a link stays one
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        keys = list(read_keys(path)) if path.exists() else []
        yield keys
        content = _format_keys(keys)
        parse_keys(content, path)  # what is written can be read: no name twice, not too many
        _replace(path, content)
        os.fsync(directory)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    finally:
        os.close(directory)


def format_time(time: datetime) -> str:
    """Return a time as files and tables show it, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if path.exists():
                # A router of another user goes on reading it.
                status = path.stat()
                os.fchmod(file.fileno(), status.st_mode & 0o640)
                with suppress(PermissionError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def _parse_line(line: bytes) -> ApiKey:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"must be at most {MAX_LINE_BYTES} bytes, got {len(line)}")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not a JSON object") from None
    if not isinstance(fields, dict) or not all(isinstance(each, str) for each in fields.values()):
        raise ValueError("is not a JSON object of texts")
    if fields.keys() - _FIELDS:
        raise ValueError(f"has fields other than {', '.join(sorted(_FIELDS))}")
    for field in ("name", "sha256", "created"):
        if field not in fields:
            raise ValueError(f"{field} is missing")
    if not _DIGEST.fullmatch(fields["sha256"]):
        raise ValueError("sha256 must be 64 hexadecimal digits in lower case")
    return ApiKey(
        name=fields["name"],
        sha256=bytes.fromhex(fields["sha256"]),
        created=_parse_time("created", fields["created"]),
        expires=_parse_time("expires", fields["expires"]) if "expires" in fields else None,
        weight=_parse_number("weight", fields, float, ANYONE.weight),
        min_priority=_parse_number("min_priority", fields, int, ANYONE.min_priority),
        quotas=Quotas(*(_parse_number(quota, fields, int, None) for quota in _QUOTAS)),
    )


def _parse_number(
    field: str, fields: dict[str, str], kind: Callable[[str], Number], default: Default
) -> Number | Default:
    if field not in fields:
        return default
    try:
        return kind(fields[field])
    except ValueError:
        raise ValueError(f"{field} must be a number") from None


def _parse_time(field: str, text: str) -> datetime:
    time = None
    with suppress(ValueError):
        time = datetime.fromisoformat(text)
    if time is None or time.tzinfo is None:
        raise ValueError(f"{field} must be a time with its zone, e.g. 2030-01-31T12:00:00Z")
    return time


def _format_keys(keys: Sequence[ApiKey]) -> bytes:
    lines = []
    for key in keys:
        fields = {
            "name": key.name,
            "sha256": key.sha256.hex(),
            "created": format_time(key.created),
        }
        if key.expires is not None:
            fields["expires"] = format_time(key.expires)
        if key.weight != ANYONE.weight:
            fields["weight"] = repr(key.weight)
        if key.min_priority != ANYONE.min_priority:
            fields["min_priority"] = str(key.min_priority)
        for name in _QUOTAS:
            if (quota := getattr(key.quotas, name)) is not None:
                fields[name] = str(quota)
        lines.append(json.dumps(fields) + "\n")
    return "".join(lines).encode()
