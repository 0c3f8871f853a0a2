"""How caches hold keys and values: in the activations' type, or quantised, by torch alone."""

from typing import Any

import torch
from torch import Tensor

ROW_SCALE_BYTES = 4


class PlainCache:
    """Rows as they are.

    Attributes:
        relative_error: that attention over normal random numbers keeps to.
    """

    relative_error = 0.0

    def options(self, kv_heads: int) -> dict[str, Any]:
        """The arguments that describe a cache of so many heads to operations."""
        del kv_heads
        return {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A cache [..., D] of slots that must not be read: NaN."""
        return torch.full(shape, torch.nan, dtype=dtype)

    def encode(self, rows: Tensor, *, is_key: bool = True) -> Tensor:
        """What is cached of rows [..., Hkv, D]."""
        del is_key
        return rows

    def decode(self, cached: Tensor, *, is_key: bool = True) -> Tensor:
        """The numbers that are meant, float64."""
        del is_key
        return cached.double()


class Int8Cache(PlainCache):
    """Integers behind which their row's float32 scale lies."""

    relative_error = 0.015

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Every row has a NaN for its scale."""
        return torch.full((*shape[:-1], shape[-1] + ROW_SCALE_BYTES), -1, dtype=torch.int8)

    def encode(self, rows: Tensor, *, is_key: bool = True) -> Tensor:
        """By the definition: a 127th of the largest magnitude is the scale."""
        scales = rows.float().abs().amax(-1, keepdim=True) / 127
        inverse = torch.where(scales > 0, 1 / scales, 0)
        integers = (rows.float() * inverse).round().to(torch.int8)
        return torch.cat([integers, scales.view(torch.int8)], -1)

    def decode(self, cached: Tensor, *, is_key: bool = True) -> Tensor:
        """The numbers that are meant, float64."""
        scales = cached[..., -ROW_SCALE_BYTES:].contiguous().view(torch.float32)
        return cached[..., :-ROW_SCALE_BYTES].double() * scales.double()


class Float8Cache(PlainCache):
    """e4m3 with a scale for each head of keys and of values."""

    relative_error = 0.05

    def options(self, kv_heads: int) -> dict[str, Any]:
        """Scales that are no powers of two."""
        return {name: self._scales(kv_heads, name == "k_scale") for name in ("k_scale", "v_scale")}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """NaN."""
        return torch.full(shape, torch.nan).to(torch.float8_e4m3fn)

    def encode(self, rows: Tensor, *, is_key: bool = True) -> Tensor:
        """By the definition: divided, rounded, at most 448."""
        scaled = rows.float() / self._scales(rows.shape[-2], is_key)[:, None]
        return scaled.clamp(-448, 448).to(torch.float8_e4m3fn)

    def decode(self, cached: Tensor, *, is_key: bool = True) -> Tensor:
        """The numbers that are meant, float64."""
        scales = self._scales(cached.shape[-2], is_key).double()
        return cached.float().double() * scales[:, None]

    @staticmethod
    def _scales(kv_heads: int, is_key: bool) -> Tensor:
        return (
            torch.linspace(0.03, 0.07, kv_heads) if is_key else torch.linspace(0.3, 0.01, kv_heads)
        )


PLAIN = PlainCache()


def quantised_cache(isa: str) -> PlainCache:
    """What an instruction set serves beside caches of the activations' type."""
    return Float8Cache() if isa == "gpu" or isa.startswith("cuda") else Int8Cache()
