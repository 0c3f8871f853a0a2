"""How caches hold keys and values: in the activations' type, or quantised, by torch alone."""

from typing import Any

import torch
from torch import Tensor

ROW_SCALE_BYTES = 4


class PlainCache:
    """Rows as they are."""

    options: dict[str, Any] = {}  # noqa: RUF012

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A cache [..., D] of slots that must not be read: NaN."""
        return torch.full(shape, torch.nan, dtype=dtype)

    def encode(self, rows: Tensor) -> Tensor:
        """What is cached of rows [..., Hkv, D]."""
        return rows

    def decode(self, cached: Tensor) -> Tensor:
        """The numbers that are meant, float64."""
        return cached.double()


class Int8Cache(PlainCache):
    """Integers behind which their row's float32 scale lies."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Every row has a NaN for its scale."""
        return torch.full((*shape[:-1], shape[-1] + ROW_SCALE_BYTES), -1, dtype=torch.int8)

    def encode(self, rows: Tensor) -> Tensor:
        """By the definition: a 127th of the largest magnitude is the scale."""
        scales = rows.float().abs().amax(-1, keepdim=True) / 127
        inverse = torch.where(scales > 0, 1 / scales, 0)
        integers = (rows.float() * inverse).round().to(torch.int8)
        return torch.cat([integers, scales.view(torch.int8)], -1)

    def decode(self, cached: Tensor) -> Tensor:
        """The numbers that are meant, float64."""
        scales = cached[..., -ROW_SCALE_BYTES:].contiguous().view(torch.float32)
        return cached[..., :-ROW_SCALE_BYTES].double() * scales.double()


PLAIN = PlainCache()


def quantised_cache(isa: str) -> PlainCache:
    """What an instruction set serves beside caches of the activations' type."""
    del isa
    return Int8Cache()
