"""The element types of the paged cache: the model's own type, or one byte."""

import torch

from quire.contract.errors import ModelLoadError
from worker_svc.device.base import Device

KV_CACHE_DTYPES: dict[str, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
# The made-up text that scales of float8 are measured on; those of int8 go with each row.
_CALIBRATION_TOKENS = 512
# Each row of int8 ends with its scale, a float32 that the elements are multiples of.
_INT8_SCALE_BYTES = 4


def resolve_kv_cache_dtype(name: str, dtype: torch.dtype, device: Device) -> torch.dtype:
    """Return the type of a cache's elements.

    Args:
        name: "auto" for the type of the model, "fp8" or "int8".
        dtype: type of the model.
        device: device of the cache.

    Raises:
        ModelLoadError: the device does not serve the type.
    """
    if name == "auto":
        return dtype
    if KV_CACHE_DTYPES[name] not in device.kv_cache_dtypes:
        served = [each for each, held in KV_CACHE_DTYPES.items() if held in device.kv_cache_dtypes]
        raise ModelLoadError(
            f"kv_cache_dtype: must be one of {', '.join(['auto', *served])} on {device.name}, "
            f"got {name!r}"
        )
    return KV_CACHE_DTYPES[name]


def calibration_length(dtype: torch.dtype, max_model_len: int) -> int:
    """Return the tokens that the scales of a cache are measured on; 0 if it needs none."""
    return min(_CALIBRATION_TOKENS, max_model_len) if dtype is torch.float8_e4m3fn else 0


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Return the elements of a row of the cache, which holds one token of one head."""
    return head_dim + (_INT8_SCALE_BYTES if dtype is torch.int8 else 0)
