"""What the paged cache holds: the model's own type, or a byte for each element."""

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.device.base import Device

KV_CACHE_DTYPES: dict[str, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
# Behind each row of int8: the float32 that its elements are multiples of.
_INT8_SCALE_BYTES = 4


def resolve_kv_cache_dtype(name: str, dtype: torch.dtype, device: Device) -> torch.dtype:
    """Return the type of a cache's elements.

    Args:
        name: "auto" for that of the model, "fp8" or "int8".
        dtype: of the model.
        device: that is to serve it.

    Raises:
        ModelLoadError: the device does not serve it; says what it serves.
    """
    if name == "auto":
        return dtype
    if KV_CACHE_DTYPES[name] not in device.kv_cache_dtypes:
        served = [each for each, held in KV_CACHE_DTYPES.items() if held in device.kv_cache_dtypes]
        raise ModelLoadError(
            f"kv_cache_dtype: {device.name} serves {', '.join(['auto', *served])}, got {name!r}"
        )
    return KV_CACHE_DTYPES[name]


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Return the elements of a cache's row: of one token and head."""
    return head_dim + (_INT8_SCALE_BYTES if dtype is torch.int8 else 0)
