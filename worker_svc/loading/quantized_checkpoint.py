"""Checkpoints that hold integers or float8 in the place of weights: GPTQ, AWQ, fp8 and others.

A weight is (integer - zero) * scale, computed in float32, and then like any other of a checkpoint;
or layers are given the integers, where `--quantization stored` asks for them. A float8 stands in
the place of the integer, and has no zero.
`read_quantization` finds the format by `quantization_config`.

Sources: Frantar et al., 2022, "GPTQ"; Lin et al., 2023, "AWQ"; the layouts are those that
AutoGPTQ and GPTQModel, AutoAWQ (its "gemm") and compressed-tensors write, and that of
DeepSeek-V3's float8.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.quant_method import CONFIG_KEY, quant_method
from worker_svc.loading.stored_layer import StoredLayer
from worker_svc.loading.weights import SafetensorsCheckpoint, TensorReader

_WORD_BITS = 32
# What is added to a stored zero.
_GPTQ_OFFSETS = {"gptq": 1, "gptq_v2": 0}
# AutoAWQ's order of the features in a word of eight, from the lowest bits.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# What layers and caches of integers would be computed with, and the size of a weight unpacked.
_NOT_OF_WEIGHTS = re.compile(r"\.([qkv]|input|output)_(scale|zero_point)$|\.weight_shape$")


class QuantizedCheckpoint(ABC):
    """A checkpoint whose dense layers are dequantised as they are read; the rest is as it is.

    Args:
        checkpoint: the files.
        config: section of config.json.
        suffix: of the tensor that a quantised layer has in the place of `weight`.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, config: HfConfig, suffix: str) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._suffix = suffix
        # Layers of several sources are read once for each.
        self._last: tuple[str, torch.Tensor] | None = None
        self._last_grouped: tuple[str, GroupedWeight | None] | None = None

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name, or what it can be made from."""
        return self._checkpoint.has(name) or self._is_quantized(name)

    def unread(self) -> list[str]:
        """Return the names of tensors that were not read and are not for nothing."""
        return [
            name
            for name in self._checkpoint.unread()
            if not _NOT_OF_WEIGHTS.search(name) and not self._is_empty_bias(name)
        ]

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        """Return part of a tensor; of a quantised one the whole is read, and float32 returned.

        Args:
            name: as in the checkpoint.
            shape: shape that the whole tensor must have.
            part: indices of each leading dimension; all indices of the other dimensions.

        Raises:
            ModelLoadError: missing, of another shape, or unreadable.
        """
        if not self._is_quantized(name):
            return self._checkpoint.read(name, shape, part)
        if self._last is None or self._last[0] != name:
            layer = self._layer(name.removesuffix("weight"), shape[0], shape[1])
            self._last = name, layer.dequantised(name)
        return self._last[1][tuple(slice(item.start, item.stop) for item in part) or ...]

    def grouped(self, name: str, shape: tuple[int, int]) -> GroupedWeight | None:
        """Return a weight as it is stored; None if it is plain, or layers cannot hold it.

        Args:
            name: as in the checkpoint.
            shape: that the weight must have.

        Raises:
            ModelLoadError: of another shape, or unreadable.
        """
        if not self._is_quantized(name):
            return None
        if self._last_grouped is None or self._last_grouped[0] != name:
            layer = self._layer(name.removesuffix("weight"), *shape)
            self._last_grouped = name, layer.grouped(name)
        return self._last_grouped[1]

    def _is_empty_bias(self, name: str) -> bool:
        """Return whether a tensor is the bias that AutoGPTQ gave to layers that have none."""
        layer = name.removesuffix("bias")
        return self._is_quantized(f"{layer}weight") and not self._checkpoint.stored(name).any()

    def _is_quantized(self, name: str) -> bool:
        layer = name.removesuffix("weight")
        return layer != name and self._checkpoint.has(layer + self._suffix)

    @abstractmethod
    def _layer(self, layer: str, num_features: int, in_features: int) -> StoredLayer:
        """Return a layer whose values are [num_features, in_features]; its name ends with a dot."""


class GptqCheckpoint(QuantizedCheckpoint):
    """Words of `bits` along K; scales [groups, N]; zeros packed along N, stored less 1 in "gptq".

    With `desc_act` rows of K are in any group, as g_idx says. Symmetric layers have the middle as
    their only zero, which releases store either way, whatever they call the format.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, config: HfConfig) -> None:
        super().__init__(checkpoint, config, "qweight")
        self._bits = _bits(config, "bits", (4, 8))
        self._group_size = _group_size(config, "group_size")
        form = config.text("checkpoint_format", "gptq")
        if form not in _GPTQ_OFFSETS:
            raise config.error("checkpoint_format", f"must be gptq or gptq_v2, got {form!r}")
        self._offset = _GPTQ_OFFSETS[form]
        # As transformers takes it where it is absent.
        self._is_symmetric = config.flag("sym", True)

    def _layer(self, layer: str, num_features: int, in_features: int) -> StoredLayer:
        words = self._checkpoint.stored(f"{layer}qweight", (None, num_features), torch.int32)
        integers = unpacked(words.t(), self._bits)
        scales = self._checkpoint.stored(f"{layer}scales", (None, num_features)).float().t()
        num_groups = scales.shape[1]
        zeros = self._checkpoint.stored(f"{layer}qzeros", (num_groups, None), torch.int32)
        zeros = self._zeros(unpacked(zeros, self._bits).t())
        group_of = None
        if self._checkpoint.has(f"{layer}g_idx"):
            group_of = self._checkpoint.stored(f"{layer}g_idx", (in_features,), torch.int32).long()
        self._checkpoint.require_shape(f"{layer}qweight", integers, (num_features, in_features))
        return StoredLayer(integers, scales, zeros, group_of, self._group_size, self._bits)

    def _zeros(self, stored: torch.Tensor) -> torch.Tensor:
        middle = 2 ** (self._bits - 1)
        forms = (bool((stored == each).all()) for each in (middle, middle - 1))
        if self._is_symmetric and any(forms):
            return torch.full_like(stored, middle)
        return stored + self._offset


class AwqCheckpoint(QuantizedCheckpoint):
    """Words of eight features of 4 bits, in an order of their own; scales [groups, N]."""

    def __init__(self, checkpoint: SafetensorsCheckpoint, config: HfConfig) -> None:
        super().__init__(checkpoint, config, "qweight")
        _bits(config, "bits" if "bits" in config else "w_bit", (4,))
        self._group_size = _group_size(config, config.spelling("group_size", "q_group_size"))
        if config.text("version", "gemm").lower() != "gemm":
            raise config.error("version", f"must be gemm, got {config.text('version')!r}")

    def _layer(self, layer: str, num_features: int, in_features: int) -> StoredLayer:
        scales = self._checkpoint.stored(f"{layer}scales", (None, num_features)).float()
        integers, zeros = (
            self._integers(layer + name, (rows, num_features)).t()
            for name, rows in (("qweight", in_features), ("qzeros", len(scales)))
        )
        return StoredLayer(integers, scales.t(), zeros, group_size=self._group_size, bits=4)

    def _integers(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        words = self._checkpoint.stored(name, (shape[0], shape[1] // 8), torch.int32)
        stored = unpacked(words, 4).view(shape[0], -1, 8)
        integers = torch.empty_like(stored)
        integers[:, :, list(_AWQ_ORDER)] = stored
        return integers.view(shape)


class CompressedCheckpoint(QuantizedCheckpoint):
    """compressed-tensors: scales [N, groups], [N, 1] or [1], and zeros like them or none.

    Integers of 8 bits and float8 are stored in `weight`, those of 4 bits packed along K.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, config: HfConfig) -> None:
        super().__init__(checkpoint, config, "weight_scale")
        self._format = config.text("format", "unnamed")
        if self._format not in ("pack-quantized", "int-quantized", "float-quantized"):
            raise config.error(
                "format",
                f"must be pack-quantized, int-quantized or float-quantized, got {self._format!r}",
            )
        groups = config.section("config_groups")
        weights = [groups.section(name).section("weights") for name in groups.names()]
        sizes = {_bits(each, "num_bits", (4, 8)) for each in weights}
        if len(sizes) != 1:
            raise config.error("config_groups", f"must have one number of bits, got {sizes}")
        (self._bits,) = sizes
        found = {_group_size(each, "group_size", -1) for each in weights}
        self._group_sizes = sorted(size for size in found if size is not None)

    def _layer(self, layer: str, num_features: int, in_features: int) -> StoredLayer:
        shape = (num_features, in_features)
        zeros = None
        if self._format == "pack-quantized":
            words = self._checkpoint.stored(
                f"{layer}weight_packed", (num_features, None), torch.int32
            )
            middle = 2 ** (self._bits - 1)
            values = unpacked(words, self._bits)[:, :in_features] - middle
            if self._checkpoint.has(f"{layer}weight_zero_point"):
                packed = self._checkpoint.stored(
                    f"{layer}weight_zero_point", (None, None), torch.int32
                )
                zeros = unpacked(packed.t(), self._bits).t()[:num_features] - middle
            self._checkpoint.require_shape(f"{layer}weight_packed", values, shape)
        else:
            dtype = torch.int8 if self._format == "int-quantized" else torch.float8_e4m3fn
            values = self._checkpoint.stored(f"{layer}weight", shape, dtype)
            if self._checkpoint.has(f"{layer}weight_zero_point"):
                zeros = _table(self._checkpoint.stored(f"{layer}weight_zero_point")).int()
        scales = _table(self._checkpoint.stored(f"{layer}weight_scale")).float()
        group_of = None
        if self._checkpoint.has(f"{layer}weight_g_idx"):
            group_of = self._checkpoint.stored(f"{layer}weight_g_idx", (in_features,)).long()
        groups, group_size = scales.shape[1], None
        if groups > 1 and self._group_sizes:
            # Which layers are of which group is not read: the number of scales shows it.
            fitting = [size for size in self._group_sizes if -(-in_features // size) == groups]
            if len(fitting) > 1:
                problem = f"must have one group_size for {layer}weight, got {fitting}"
                raise self._config.error("config_groups", problem)
            group_size = (fitting or self._group_sizes)[0]
        bits = None if self._format == "float-quantized" else self._bits
        least = -(2 ** (self._bits - 1))
        return StoredLayer(values, scales, zeros, group_of, group_size, bits, least)


class Fp8Checkpoint(QuantizedCheckpoint):
    """Float8 in `weight`, and a scale for each block of `weight_block_size` features and K.

    The last blocks may be smaller. What `weight_scale_inv` holds is multiplied.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, config: HfConfig) -> None:
        super().__init__(checkpoint, config, "weight_scale_inv")
        block = config.numbers("weight_block_size")
        if len(block) != 2 or not all(size.is_integer() and size > 0 for size in block):
            raise config.error("weight_block_size", f"must be two positive integers, got {block}")
        self._rows, self._columns = map(int, block)
        if config.text("fmt", "e4m3") != "e4m3":
            raise config.error("fmt", f"must be e4m3, got {config.text('fmt')!r}")

    def _layer(self, layer: str, num_features: int, in_features: int) -> StoredLayer:
        values = self._checkpoint.stored(
            f"{layer}weight", (num_features, in_features), torch.float8_e4m3fn
        )
        blocks = -(-num_features // self._rows), -(-in_features // self._columns)
        scales = self._checkpoint.stored(f"{layer}weight_scale_inv", blocks).float()
        scales = scales.repeat_interleave(self._rows, dim=0)[:num_features]
        return StoredLayer(values, scales, group_size=self._columns)


def _table(stored: torch.Tensor) -> torch.Tensor:
    """Return [rows, groups] of that, of [rows], or of one for all."""
    return stored if stored.ndim == 2 else stored.reshape(-1, 1)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the unsigned integers of words [M, n] int32, lowest bits first: [M, n * 32 / bits]."""
    shifts = torch.arange(0, _WORD_BITS, bits, dtype=torch.int32)
    integers: torch.Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return integers.flatten(1)


_FORMATS: dict[str, Callable[[SafetensorsCheckpoint, HfConfig], TensorReader]] = {
    "gptq": GptqCheckpoint,
    "awq": AwqCheckpoint,
    "compressed-tensors": CompressedCheckpoint,
    "fp8": Fp8Checkpoint,
}


def read_quantization(
    checkpoint: SafetensorsCheckpoint, hf: HfConfig, *, is_native: bool
) -> TensorReader:
    """Return the reader of a checkpoint, whatever its weights are stored as.

    Args:
        checkpoint: the files.
        hf: config.json.
        is_native: whether the model has a family of ours.

    Raises:
        ModelLoadError: a format that is not served; names it.
    """
    method = quant_method(hf, is_native=is_native)
    return checkpoint if method is None else _FORMATS[method](checkpoint, hf.section(CONFIG_KEY))


def _bits(config: HfConfig, key: str, served: tuple[int, ...]) -> int:
    bits = config.integer(key)
    if bits not in served:
        raise config.error(key, f"must be {' or '.join(map(str, served))}, got {bits}")
    return bits


def _group_size(config: HfConfig, key: str, default: int = 128) -> int | None:
    """Return the input features of a group; None for all of them, which formats write as -1."""
    size = config.number(key, default)
    if size == -1:
        return None
    return config.integer(key, default)
