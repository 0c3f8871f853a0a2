"""Files of records: rotated, of bounded size together, readable by their owner alone."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from quire.contract.errors import ConfigError
from quire.contract.recording import EpochHeader, Record
from quire.wire.recording import parse_records, serialize_record

# Files of which the oldest is deleted when the next would be one too many.
FILES_AT_MOST = 8
_NAME = re.compile(r"\d{20}-\d{8}\.records")


def make_directory(directory: Path) -> None:
    """Make the directory of records, if it is not there.

    Raises:
        ConfigError: it cannot be used, or other users may enter it.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigError(
            f"record: must be a directory that can be written, got {directory}: {error.strerror}"
        ) from None
    if mode & 0o077 or not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(
            f"record: must be a directory that its owner alone may enter and write, got "
            f"{directory} of mode {mode:04o}"
        )


class RecordFiles:
    """Writes records to files of a directory, a set of them for each epoch.

    Names sort by age. Files from before count towards the limit and go first.

    Args:
        directory: of the files; made if it does not exist.
        max_bytes: limit on the size of all files together.
        with_tokens: whether tokens are written.

    Attributes:
        num_bytes: written so far.

    Raises:
        ConfigError: the directory cannot be used, or other users may enter it.
    """

    def __init__(self, directory: Path, max_bytes: int, *, with_tokens: bool) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._file_bytes = max_bytes // FILES_AT_MOST
        self._with_tokens = with_tokens
        self._header: Record | None = None
        self._fd = -1
        # Of the file that is open, or was last.
        self._index, self._size = 0, 0
        self.num_bytes = 0
        make_directory(directory)

    def append(self, record: Record) -> None:
        """Write a record; a header begins a file, which gets it.

        Raises:
            OSError: it could not be written; the file is as before.
        """
        if isinstance(record.content, EpochHeader):
            self._header = record
            self._open(0)
            return
        data = serialize_record(record, with_tokens=self._with_tokens)
        if self._fd < 0 or self._size + len(data) > self._file_bytes:
            self._open(self._index + 1)
        self._write(data)

    def close(self) -> None:
        """Close the file that is open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, index: int) -> None:
        """Begin a file, with the header of its epoch, and delete the oldest to make room."""
        assert self._header is not None, "a header comes first"
        self.close()
        header = cast(EpochHeader, self._header.content)
        self._index, self._size = index, 0
        sizes = {path: path.stat().st_size for path in record_paths(self._directory)}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self._max_bytes - self._file_bytes:
                break
            path.unlink()
            total -= size
        path = self._directory / f"{header.epoch:020d}-{index:08d}.records"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        content = replace(header, file_index=index)
        try:
            self._write(serialize_record(replace(self._header, content=content), with_tokens=True))
        except OSError:
            self.close()
            path.unlink()
            raise

    def _write(self, data: bytes) -> None:
        if self._size + len(data) > self._file_bytes:
            raise OSError(f"a record of {len(data)} bytes is larger than a file")
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self.num_bytes += len(data)


def record_paths(directory: Path) -> list[Path]:
    """Return the files of a directory that hold records, the oldest first."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file, its header first, up to one that was not written to its end.

    Raises:
        QuireError: a value is out of bounds.
        OSError: the file cannot be read.
    """
    return parse_records(path.read_bytes())
