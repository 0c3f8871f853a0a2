"""Weights of a Hugging Face directory: safetensors only, and only the parts asked for.

Layers read their weights while they are built, so a model is never half loaded: if a tensor is
missing or has another shape, the construction ends with a one-line error.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open

from quire.contract.errors import ModelLoadError
from worker_svc.layers.grouped_linear import GROUP_SIZES, GroupedWeight
from worker_svc.loading.hf_config import HfConfig, one_line
from worker_svc.loading.weight_names import INDEX_FILE, SINGLE_FILE, missing_file, no_safetensors

_FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")


class TensorReader(Protocol):
    """A store of named tensors of which parts can be read."""

    def has(self, name: str) -> bool:
        """Return whether a tensor of this name is stored."""

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        """Return part of a tensor that must have `shape`."""


@runtime_checkable
class GroupedReader(Protocol):
    """A store that holds integers in the place of weights."""

    def grouped(self, name: str, shape: tuple[int, int]) -> GroupedWeight | None:
        """Return a weight as integers, or None if it is not held so."""


class SafetensorsCheckpoint:
    """The safetensors files of a model directory, one or several with an index.

    Raises:
        ModelLoadError: there are no safetensors, a file of the index is missing, or one is broken.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._names_read: set[str] = set()
        index = directory / INDEX_FILE
        if index.exists():
            self._file_of_tensor = self._read_index(index)
        elif (directory / SINGLE_FILE).exists():
            names = self._open(SINGLE_FILE).keys()
            self._file_of_tensor = dict.fromkeys(names, SINGLE_FILE)
        else:
            raise ModelLoadError(no_safetensors(directory))

    @property
    def files(self) -> dict[str, Path]:
        """The file that holds each tensor, by the tensor's name."""
        return {name: self._directory / file for name, file in self._file_of_tensor.items()}

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds a tensor of this name."""
        return name in self._file_of_tensor

    def unread(self) -> list[str]:
        """Return the names of tensors of which no part was read."""
        return [name for name in self._file_of_tensor if name not in self._names_read]

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        """Return part of a tensor; only that part is read from the disk.

        Args:
            name: as in the checkpoint.
            shape: shape that the whole tensor must have.
            part: indices of each leading dimension; all indices of the other dimensions.

        Raises:
            ModelLoadError: missing, of another shape, not of a floating-point type, or unreadable.
        """
        file_name = self._file_of_tensor.get(name)
        if file_name is None:
            raise ModelLoadError(f"{self._directory}: tensor {name} is missing")
        self._names_read.add(name)
        try:
            stored = self._open(file_name).get_slice(name)
            found = tuple(stored.get_shape())
            if found != shape:
                raise ModelLoadError(
                    f"{self._directory / file_name}: tensor {name} has shape {list(found)}, "
                    f"but config.json asks for {list(shape)}"
                )
            if stored.get_dtype() not in _FLOAT_DTYPES:
                raise ModelLoadError(
                    f"{self._directory / file_name}: tensor {name} holds {stored.get_dtype()}; "
                    f"only {', '.join(_FLOAT_DTYPES)} are served"
                )
            tensor: torch.Tensor = stored[
                tuple(slice(item.start, item.stop) for item in part) or ...
            ]
        except SafetensorError as error:
            raise self._unreadable(file_name, error) from error
        return tensor

    def stored(
        self, name: str, shape: tuple[int | None, ...] = (), dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return a whole tensor of any type.

        Args:
            name: as in the checkpoint.
            shape: that it must have, None for any length; of any shape if empty.
            dtype: that it must have, if any.

        Raises:
            ModelLoadError: missing, of another shape or type, or unreadable.
        """
        file_name = self._file_of_tensor.get(name)
        if file_name is None:
            raise ModelLoadError(f"{self._directory}: tensor {name} is missing")
        self._names_read.add(name)
        try:
            tensor: torch.Tensor = self._open(file_name).get_tensor(name)
        except SafetensorError as error:
            raise self._unreadable(file_name, error) from error
        if shape:
            self.require_shape(name, tensor, shape)
        if dtype not in (None, tensor.dtype):
            raise ModelLoadError(
                f"{self._directory / file_name}: tensor {name} holds {tensor.dtype}, not {dtype}"
            )
        return tensor

    def require_shape(self, name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
        """Check the shape of a tensor, or of what was made from it.

        Raises:
            ModelLoadError: it has another one.
        """
        found = tensor.shape
        if len(shape) != len(found) or any(
            wanted not in (None, size) for wanted, size in zip(shape, found, strict=True)
        ):
            raise ModelLoadError(
                f"{self.files[name]}: tensor {name} has shape {list(tensor.shape)}, "
                f"but config.json asks for {list(shape)}"
            )

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            try:
                self._files[file_name] = safe_open(
                    str(self._directory / file_name), framework="pt", device="cpu"
                )
            except FileNotFoundError as error:
                raise ModelLoadError(missing_file(self._directory, file_name)) from error
            except (OSError, SafetensorError) as error:
                raise self._unreadable(file_name, error) from error
        return self._files[file_name]

    def _read_index(self, index: Path) -> dict[str, str]:
        section = HfConfig.read(index).section("weight_map")
        names = {name: section.text(name) for name in section.names()}
        for file_name in sorted(set(names.values())):
            if Path(file_name).name != file_name:
                raise ModelLoadError(f"{index}: {file_name!r} is not the name of a file beside it")
            stored = set(self._open(file_name).keys())
            for name in (name for name, file in names.items() if file == file_name):
                if name not in stored:
                    raise ModelLoadError(
                        f"{self._directory / file_name}: tensor {name} is missing, "
                        f"though {INDEX_FILE} lists it"
                    )
        return names

    def _unreadable(self, file_name: str, error: Exception) -> ModelLoadError:
        return ModelLoadError(
            f"{self._directory / file_name}: not a whole safetensors file: {one_line(error)}"
        )


class WeightTally:
    """Counts what was loaded of a checkpoint.

    Attributes:
        loaded_bytes: memory of all loaded parts on the device.
    """

    def __init__(self) -> None:
        self.loaded_bytes = 0
        self._sizes: dict[str, int] = {}

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors of which any part was loaded; each whole tensor counts once."""
        return sum(self._sizes.values())

    def add(self, name: str, size: int, num_bytes: int) -> None:
        """Count a part of a tensor.

        Args:
            name: name of the tensor.
            size: elements of the whole tensor.
            num_bytes: bytes of the part.
        """
        self._sizes[name] = size
        self.loaded_bytes += num_bytes


class Weights:
    """A view of a checkpoint below a name prefix, in the dtype and on the device of the model.

    Args:
        reader: reads the checkpoint.
        dtype: type of the loaded tensors.
        device: device of the loaded tensors.
        prefix: prefix of their names.
        tally: counts what is loaded.
    """

    def __init__(
        self,
        reader: TensorReader,
        dtype: torch.dtype,
        device: torch.device,
        prefix: str = "",
        tally: WeightTally | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._reader = reader
        self._prefix = prefix
        self._tally = tally or WeightTally()

    def count_parameters(self, size: int) -> None:
        """Count `size` parameters that were read by other means, all of them on this rank."""
        self._tally.add(self._prefix, size, size * self.dtype.itemsize)

    def scope(self, name: str) -> "Weights":
        """Return the view below `name`; dots join the names of nested scopes."""
        return Weights(self._reader, self.dtype, self.device, f"{self._prefix}{name}.", self._tally)

    def as_type(self, dtype: torch.dtype) -> "Weights":
        """Return the same view, whose tensors have another type."""
        return Weights(self._reader, dtype, self.device, self._prefix, self._tally)

    def scope_if_present(self, name: str, probe: str) -> "Weights":
        """Return the view below `name` if it has the tensor `probe`, else this one.

        Checkpoints saved from the bare model, without its head, lack the outermost name.
        """
        scope = self.scope(name)
        return scope if scope.has(probe) else self

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name in the view."""
        return self._reader.has(self._prefix + name)

    def load(self, name: str, shape: tuple[int, ...], part: tuple[range, ...] = ()) -> torch.Tensor:
        """Return part of a tensor as memory of its own.

        Args:
            name: below this view's prefix.
            shape: shape that the whole tensor must have.
            part: indices of each leading dimension; all indices of the other dimensions.

        Raises:
            ModelLoadError: missing, of another shape, or unreadable.
        """
        full_name = self._prefix + name
        tensor = self._reader.read(full_name, shape, part)
        # A copy, because the tensor of safetensors may be a view of the file.
        own = tensor.to(self.device, self.dtype, copy=True).contiguous()
        self._tally.add(full_name, prod(shape), own.nbytes)
        return own

    def load_grouped(
        self, sources: Sequence[tuple[str, tuple[int, int], tuple[range, range]]]
    ) -> GroupedWeight | None:
        """Return parts of weights, stacked, as the integers that the checkpoint has.

        Args:
            sources: of each its name below this view's prefix, the shape that the whole weight must
                have, [out_features, in_features], and the indices of both dimensions.

        Returns:
            None if one has no integers, or others than the first (of 8 bits, of 4, float8), or a
            part that does not begin and end with groups.

        Raises:
            ModelLoadError: of another shape, or unreadable.
        """
        step = GROUP_SIZES[-1]
        parts: list[GroupedWeight] = []
        for name, shape, (rows, columns) in sources:
            if not isinstance(self._reader, GroupedReader) or any(
                each % step != 0 for each in (columns.start, columns.stop)
            ):
                return None
            whole = self._reader.grouped(self._prefix + name, shape)
            if whole is None:
                return None
            form = whole.bits, whole.is_float
            if parts and form != (parts[0].bits, parts[0].is_float):
                return None
            parts.append(whole.part(rows, columns).to(self.device, self.dtype))
        for (name, shape, _), part in zip(sources, parts, strict=True):
            self._tally.add(self._prefix + name, prod(shape), part.nbytes)
        return GroupedWeight.stacked(parts)
