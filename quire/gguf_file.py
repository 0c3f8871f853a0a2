"""The container of GGUF: metadata, a table of tensors, and their bytes.

Read here and not through the package gguf, which keeps an array for each string of the vocabulary:
for 150,000 tokens that is 20 s and half a gigabyte, in the router as in each worker.

Source: github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from quire.contract.errors import ModelLoadError

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# Of struct, by the type of a value.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is.

    Attributes:
        type_id: number of its ggml_type.
        shape: as torch orders it, the contiguous dimension last.
        begin: offset in the file.
    """

    type_id: int
    shape: tuple[int, ...]
    begin: int


class GgufFile:
    """The head of a GGUF file.

    Attributes:
        path: of the file.
        metadata: values by key; arrays are lists.
        tensors: by name.

    Raises:
        ModelLoadError: not a whole GGUF file, or one of several shards.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._position = 0
            self._read()
        except (OSError, ValueError, struct.error) as error:
            raise ModelLoadError(f"{path}: not a whole GGUF file: {error}") from error
        if self.metadata.get("split.count", 1) != 1:
            raise ModelLoadError(
                f"{path}: split.count: must be 1, got {self.metadata['split.count']}; merge the "
                "shards with llama-gguf-split --merge"
            )

    def text_digest(self) -> str:
        """Return a digest of the metadata of tokenizer and chat template; "" if it has none."""
        keys = sorted(key for key in self._spans if key.startswith("tokenizer."))
        if not keys:
            return ""
        digest = sha256()
        for key in keys:
            begin, end = self._spans[key]
            digest.update(f"\0{key}\0".encode() + self._data[begin:end])
        return digest.hexdigest()

    def _read(self) -> None:
        if self._bytes(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, num_tensors, num_values = self._unpack("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"version must be 2 or 3, got {version}")
        for _ in range(num_values):
            key = self._string()
            (kind,) = self._unpack("I")
            begin = self._position
            self.metadata[key] = self._value(kind)
            self._spans[key] = begin, self._position
        table: list[tuple[str, GgufTensor]] = []
        for _ in range(num_tensors):
            name = self._string()
            (num_dimensions,) = self._unpack("I")
            shape = self._unpack(f"{num_dimensions}Q")
            type_id, offset = self._unpack("IQ")
            table.append((name, GgufTensor(type_id, shape[::-1], offset)))
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment must be a positive integer, got {alignment!r}")
        start = -(-self._position // alignment) * alignment
        for name, tensor in table:
            self.tensors[name] = GgufTensor(tensor.type_id, tensor.shape, start + tensor.begin)

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._unpack(_NUMBERS[kind])[0]
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise ValueError(f"a value has the type {kind}")
        of, count = self._unpack("IQ")
        if of in _NUMBERS:
            return list(self._unpack(f"{count}{_NUMBERS[of]}"))
        if of != _STRING:
            raise ValueError(f"an array holds values of the type {of}")
        return [self._string() for _ in range(count)]

    def _string(self) -> str:
        return self._bytes(self._unpack("Q")[0]).decode()

    def _unpack(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values

    def _bytes(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise ValueError(f"it ends within {count} bytes at {self._position}")
        found = self._data[self._position : end]
        self._position = end
        return found


def find_gguf(model: Path) -> Path | None:
    """Return the GGUF file that a model is: itself, or the only one of a directory.

    None where it is a Hugging Face directory, with a config.json, or none at all.

    Raises:
        ModelLoadError: a directory with several, and no config.json.
    """
    if model.suffix == SUFFIX and model.is_file():
        return model
    if (model / "config.json").is_file():
        return None
    files = sorted(model.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        raise ModelLoadError(f"{model}: must hold one {SUFFIX} file, got {len(files)}")
    return files[0] if files else None


def is_model(model: Path) -> bool:
    """Return whether a path may be a model's: a directory or a GGUF file."""
    try:
        return model.is_dir() or find_gguf(model) is not None
    except OSError:  # a name that is too long for a path, or in a directory that is closed to us
        return False
