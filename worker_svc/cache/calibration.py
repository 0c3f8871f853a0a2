"""Scales of float8 caches: the size of each head's keys and values, measured on a made-up text.

A scale is a power of two that keeps values up to twice the largest measured one in range; larger
ones are cut off. The precision of float8 is relative, so this room costs next to nothing. Text and
arithmetic are fixed: a worker that restarts computes the same scales.
"""

import numpy as np
import torch

from worker_svc.cache.format import calibration_length
from worker_svc.cache.shapes import empty_caches
from worker_svc.loading.loader import LoadedModel
from worker_svc.steps.prompt_step import run_prompts

_BLOCK_SIZE = 16
_LARGEST = 448.0  # of e4m3
_ROOM = 2.0


def calibrate(loaded: LoadedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the scales of each layer's keys and values, [kv_heads] float32 each."""
    device = loaded.device.torch_device
    num_tokens = calibration_length(loaded.kv_cache_dtype, loaded.info.max_model_len)
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    caches = empty_caches(
        loaded.model.num_layers,
        loaded.model.heads,
        loaded.dtype,
        _BLOCK_SIZE,
        num_blocks,
        lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device),
    )
    run_prompts(
        loaded,
        caches,
        np.array([num_tokens], np.int32),
        (np.arange(num_tokens) * 7919 + 11) % loaded.info.vocab_size,
        np.arange(num_tokens),
        np.arange(num_blocks, dtype=np.int32)[np.newaxis],
    )
    return [
        (_scales(keys).to(device), _scales(values).to(device)) for keys, values in caches.stored
    ]


def _scales(cache: torch.Tensor) -> torch.Tensor:
    """Return scales [kv_heads] float32 of a cache [blocks, kv_heads, block_size, head_dim]."""
    largest = cache.float().abs().amax(dim=(0, 2, 3)).cpu()
    exponents = (largest * _ROOM / _LARGEST).log2().ceil()
    # A head that is always zero, or not finite, has no size: its scale is 1.
    return torch.where(exponents.isfinite(), exponents, 0.0).exp2()
