"""How layers on the CPU hold their weights: as they are, or as `--quantization` asks.

The layers that ranks share are quantised: those of attention and of MLPs, experts too. Embeddings,
the head and the routers of experts keep the model's type, which costs little memory and decides
much.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from worker_svc.layers.int8_linear import Int8Linear
from worker_svc.layers.packed_linear import PackedLinear

NONE = "none"


@dataclass(slots=True)
class Quantization:
    """What layers are built for.

    Attributes:
        method: "none" or "w8a8".
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


def shared_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, num_parts: int = 1
) -> PackedLinear | Int8Linear:
    """Return a layer on the CPU that ranks share.

    Args:
        weight: [out_features, in_features] of this rank.
        bias: [out_features], or None.
        num_parts: into which the input features are cut; 1, 2, 4 or 8.
    """
    asked = _quantization.get(Quantization())
    if asked.method == NONE:
        return PackedLinear(weight, bias, num_parts)
    layer = Int8Linear(weight, bias, num_parts)
    asked.saved_bytes += weight.nbytes - layer.weight_bytes
    return layer
