"""How layers hold their weights: as they are, or as `--quantization` asks.

The layers that ranks share are quantised: those of attention and of MLPs, experts too. Embeddings,
the head and the routers of experts keep the model's type, which costs little memory and decides
much.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from worker_svc.layers.device_grouped_linear import DeviceGroupedLinear
from worker_svc.layers.grouped_linear import (
    GROUP_SIZES,
    GroupedLinear,
    GroupedWeight,
    group_size_of,
)
from worker_svc.layers.int8_linear import Int8Linear
from worker_svc.layers.packed_linear import PackedLinear

NONE = "none"
_W8A8 = "w8a8"
_BITS = {"w8": 8, "w4": 4}


@dataclass(slots=True)
class Quantization:
    """What layers are built for.

    Attributes:
        method: "none"; "w8a8"; "w8" or "w4", weights alone.
        saved_bytes: of the weights given, which the layers built so far do not hold.
    """

    method: str = NONE
    saved_bytes: int = 0


_quantization: ContextVar[Quantization] = ContextVar("how layers hold their weights")


@contextmanager
def quantization(method: str) -> Iterator[Quantization]:
    """Quantise the layers that are built in the block.

    Args:
        method: see Quantization.
    """
    asked = Quantization(method)
    token = _quantization.set(asked)
    try:
        yield asked
    finally:
        _quantization.reset(token)


def part_step() -> int:
    """Return what the length of a part of K must be a multiple of, where K is cut into parts."""
    return GROUP_SIZES[-1] if _asked().method in _BITS else 1


def is_quantised() -> bool:
    """Return whether layers built now that ranks share are quantised."""
    return _asked().method != NONE


def has_defined_bits(device: torch.device) -> bool:
    """Return whether docs/numerics.md has the bits of the layers built now that ranks share."""
    return device.type == "cpu" or _asked().method == _W8A8


def shared_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int = 1
) -> PackedLinear | Int8Linear | GroupedLinear:
    """Return a layer that ranks share: quantised, or on the CPU.

    Args:
        weight: [out_features, in_features] of this rank.
        bias: [out_features], or None.
        num_parts: into which the input features are cut; 1, 2, 4 or 8.

    Raises:
        ModelLoadError: no groups divide the parts.
    """
    asked = _asked()
    if asked.method == NONE:
        return PackedLinear(weight, bias, num_parts)
    layer: Int8Linear | GroupedLinear
    if asked.method in _BITS:
        group_size = group_size_of(weight.shape[1] // num_parts)
        grouped = GroupedWeight.of(weight, _BITS[asked.method], group_size)
        layer = GroupedLinear(grouped, bias, num_parts, weight.dtype)
    else:
        layer = Int8Linear(weight, bias, num_parts)
    asked.saved_bytes += weight.nbytes - layer.weight_bytes
    return layer


def grouped_linear_of_device(
    weight: torch.Tensor, bias: torch.Tensor | None, total_features: int, num_parts: int
) -> DeviceGroupedLinear:
    """Return a layer of 8 or 4 bits on a GPU that ranks share; see shared_linear and make_linear.

    Raises:
        ModelLoadError: no groups divide the parts.
    """
    asked = _asked()
    group_size = group_size_of(weight.shape[1] // num_parts)
    grouped = GroupedWeight.of(weight, _BITS[asked.method], group_size)
    layer = DeviceGroupedLinear(grouped, bias, total_features, weight.dtype)
    asked.saved_bytes += weight.nbytes - layer.weight_bytes
    return layer


def _asked() -> Quantization:
    return _quantization.get(Quantization())
