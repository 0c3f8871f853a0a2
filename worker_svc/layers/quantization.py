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
from worker_svc.layers.weight_only_linear import WeightOnlyLinear, pack_for_tensor_cores

NONE = "none"
STORED = "stored"
_W8A8 = "w8a8"
_BITS = {"w8": 8, "w4": 4}


@dataclass(slots=True)
class Quantization:
    """What layers are built for.

    Attributes:
        method: "none"; "w8a8"; "w8" or "w4", weights alone; "stored", as the checkpoint has them.
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
    return GROUP_SIZES[-1] if _asked().method in (*_BITS, STORED) else 1


def is_quantised() -> bool:
    """Return whether layers built now that ranks share are quantised."""
    return _asked().method not in (NONE, STORED)


def are_stored_integers_kept() -> bool:
    """Return whether layers built now take the integers that a checkpoint has."""
    return _asked().method == STORED


def have_experts_kernels(dtype: torch.dtype) -> bool:
    """Return whether a GPU multiplies all experts of a layer at once, as they are built now.

    Args:
        dtype: of the activations.
    """
    return not is_quantised() or (_asked().method in _BITS and dtype != torch.float32)


def has_defined_bits(device: torch.device) -> bool:
    """Return whether docs/numerics.md has the bits of the layers built now that ranks share."""
    return device.type == "cpu" or _asked().method == _W8A8


def shared_linear(
    weight: torch.Tensor | GroupedWeight, bias: torch.Tensor | None, num_parts: int = 1
) -> PackedLinear | Int8Linear | GroupedLinear:
    """Return a layer that ranks share: quantised, or on the CPU.

    Args:
        weight: [out_features, in_features] of this rank; of integers as they are. Float8 becomes
            the dtype of the layer.
        bias: [out_features], or None.
        num_parts: into which the input features are cut; 1, 2, 4 or 8.

    Raises:
        ModelLoadError: no groups divide the parts.
    """
    asked = _asked()
    if isinstance(weight, GroupedWeight) and weight.is_float:
        return PackedLinear(whole_of(weight), bias, num_parts)
    layer: Int8Linear | GroupedLinear
    if isinstance(weight, GroupedWeight) or asked.method in _BITS:
        layer = GroupedLinear(_grouped(weight, num_parts), bias, num_parts, weight.dtype)
    elif asked.method == _W8A8:
        layer = Int8Linear(weight, bias, num_parts)
    else:
        return PackedLinear(weight, bias, num_parts)
    asked.saved_bytes += weight.nbytes - layer.weight_bytes
    return layer


def grouped_linear_of_device(
    weight: torch.Tensor | GroupedWeight,
    bias: torch.Tensor | None,
    total_features: int,
    num_parts: int,
) -> DeviceGroupedLinear | WeightOnlyLinear:
    """Return a layer of 8 or 4 bits on a GPU that ranks share; see shared_linear and make_linear.

    Raises:
        ModelLoadError: no groups divide the parts.
    """
    asked = _asked()
    grouped = _grouped(weight, num_parts)
    layer: DeviceGroupedLinear | WeightOnlyLinear
    if weight.dtype == torch.float32:
        layer = DeviceGroupedLinear(grouped, bias, total_features, weight.dtype)
    else:
        layer = WeightOnlyLinear(grouped, bias, total_features, num_parts)
    asked.saved_bytes += weight.nbytes - layer.weight_bytes
    return layer


def packed_for_device(
    weight: torch.Tensor | GroupedWeight, num_parts: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return a weight of 8 or 4 bits as kernels on a GPU read it, its scales, and its bits.

    Raises:
        ModelLoadError: no groups divide the parts.
    """
    grouped = _grouped(weight, num_parts)
    packed, scales = pack_for_tensor_cores(grouped, num_parts)
    _asked().saved_bytes += weight.nbytes - packed.nbytes - scales.nbytes
    return packed, scales, grouped.bits


def whole_of(weight: torch.Tensor | GroupedWeight) -> torch.Tensor:
    """Return a weight as elements in the dtype of the layer, whether it has integers or not."""
    if isinstance(weight, torch.Tensor):
        return weight
    whole = weight.dequantised().to(weight.dtype)
    _asked().saved_bytes += weight.nbytes - whole.nbytes
    return whole


def _grouped(weight: torch.Tensor | GroupedWeight, num_parts: int) -> GroupedWeight:
    """Return integers whose groups divide the parts of K."""
    size = group_size_of(weight.shape[1] // num_parts)
    if isinstance(weight, GroupedWeight):
        return weight.regrouped(min(size, weight.group_size))
    return GroupedWeight.of(weight, _BITS[_asked().method], size)


def _asked() -> Quantization:
    return _quantization.get(Quantization())
