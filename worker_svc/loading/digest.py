"""A digest of a checkpoint: of its configuration and of every byte of its tensors."""

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from quire.contract.errors import ModelLoadError
from worker_svc.loading.hf_config import HfConfig, one_line

# Of config.json: where it came from, and the type that is chosen when it is loaded.
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_MAX_THREADS = 8
_CHUNK_BYTES = 2**20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Where a tensor is, and as what.

    Attributes:
        path: of the file.
        begin: offset of its first byte.
        end: offset behind its last byte.
        dtype: as the format names it.
        shape: as the file has it.
    """

    path: Path
    begin: int
    end: int
    dtype: str
    shape: list[int]


class CheckpointDigest:
    """Reads all tensors in threads of its own while the block builds the model.

    All of them on every rank, though each keeps only its slice: ranks that were given different
    models must be refused, and the digest is the same on any number of ranks, and however the
    tensors are divided into files.

    Args:
        config: config.json.
        tensors: where each tensor is, by its name; none where weights are made up, from the
            configuration alone.
    """

    def __init__(self, config: HfConfig, tensors: Mapping[str, StoredBytes]) -> None:
        self._config = config
        self._tensors = tensors
        num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="digest")
        self._parts: dict[str, Future[bytes]] = {}

    def __enter__(self) -> Self:
        """Start to read."""
        for name, each in sorted(self._tensors.items()):
            self._parts[name] = self._threads.submit(_digest_bytes, each)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def result(self) -> bytes:
        """Wait for the threads and return the digest.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        digest = sha256(self._config.canonical(without=_NOT_OF_THE_MODEL).encode())
        for name, part in self._parts.items():
            each = self._tensors[name]
            digest.update(f"\0{name}\0{each.dtype}\0{each.shape}\0".encode() + part.result())
        return digest.digest()

    def is_copy(self, name: str, others: Iterable[str]) -> bool:
        """Wait for the threads; return whether a tensor is what one of others is, to the bit.

        Raises:
            ModelLoadError: a file cannot be read.
        """
        kind = self._tensors[name].dtype, self._tensors[name].shape
        return any(
            (self._tensors[each].dtype, self._tensors[each].shape) == kind
            and self._parts[each].result() == self._parts[name].result()
            for each in others
        )


def safetensors_bytes(files: Mapping[str, Path]) -> dict[str, StoredBytes]:
    """Return where each tensor is, by its name.

    Args:
        files: the safetensors file that holds each tensor, by the tensor's name.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    headers = {path: _Header(path) for path in sorted(set(files.values()))}
    found = {}
    for name, path in files.items():
        tensor = headers[path].tensors[name]
        begin, end = (headers[path].size + offset for offset in tensor["data_offsets"])
        found[name] = StoredBytes(path, begin, end, tensor["dtype"], tensor["shape"])
    return found


class _Header:
    """The head of a safetensors file: a length in eight bytes, and JSON; the tensors follow."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                self.tensors: dict[str, Any] = json.loads(file.read(length))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        self.size = _LENGTH_BYTES + length


def _digest_bytes(stored: StoredBytes) -> bytes:
    """Return the digest of a tensor's bytes; hashing holds no interpreter lock."""
    digest = sha256()
    begin, end = stored.begin, stored.end
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, end - begin)))
    try:
        with stored.path.open("rb", buffering=0) as file:
            file.seek(begin)
            while begin < end:
                num_read = file.readinto(buffer[: end - begin])
                if not num_read:
                    raise EOFError(f"{end - begin} bytes are missing")
                digest.update(buffer[:num_read])
                begin += num_read
    except (OSError, EOFError) as error:
        raise _unreadable(stored.path, error) from error
    return digest.digest()


def _unreadable(path: Path, error: Exception) -> ModelLoadError:
    return ModelLoadError(f"{path}: not a whole {path.suffix[1:]} file: {one_line(error)}")
