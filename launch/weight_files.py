"""The heads of safetensors files: which tensors there are, of what types; nothing is loaded."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.contract.errors import ConfigError
from worker_svc.loading.weight_names import INDEX_FILE, SINGLE_FILE, missing_file, no_safetensors

# What reading a file raises that is cut off, or another file.
_BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
# Longer ones belong to no file that was written by the library.
_MAX_HEAD_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: in the file.
        dtype: as safetensors names it, e.g. "BF16".
        num_bytes: that it has there.
    """

    name: str
    dtype: str
    num_bytes: int


def stored_tensors(model: Path, name: str) -> Iterator[StoredTensor]:
    """Yield the tensors of a model directory's safetensors files: those that a worker reads.

    Args:
        model: the directory.
        name: the option that names it, for errors.

    Raises:
        ConfigError: a file is broken; names it.
    """
    for path in _files(model, name):
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if not 0 < size <= _MAX_HEAD_BYTES:
                    raise ValueError(f"a head of {size} bytes")
                head = json.loads(file.read(size))
                whole = 8 + size
                for tensor, each in head.items():
                    if tensor != "__metadata__":
                        begin, end = each["data_offsets"]
                        whole = max(whole, 8 + size + end)
                        if not isinstance(each["dtype"], str):
                            raise ValueError(f"{each['dtype']!r} as a type of {tensor}")
                        yield StoredTensor(tensor, each["dtype"], end - begin)
            if path.stat().st_size < whole:
                raise ValueError(f"{path.stat().st_size} bytes of {whole}")
        except _BROKEN as error:
            raise ConfigError(
                f"{name}: {path} must be a whole safetensors file, got {error}; fetch it again"
            ) from None


def _files(model: Path, name: str) -> list[Path]:
    """Return the files of the index, or the single one.

    Raises:
        ConfigError: the index is broken, or a file is not there.
    """
    index = model / INDEX_FILE
    paths = [model / SINGLE_FILE]
    if index.exists():
        try:
            names = {*json.loads(index.read_text("utf-8-sig"))["weight_map"].values()}
            paths = [model / name for name in sorted(names)]
        except _BROKEN as error:
            raise ConfigError(
                f"{name}: {index} must be an index of safetensors files, got {error!r}"
            ) from None
    elif not paths[0].exists():
        raise ConfigError(f"{name}: {no_safetensors(model)}")
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{name}: {missing_file(model, path.name)}; fetch it again")
    return paths
