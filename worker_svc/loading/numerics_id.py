"""The numerics id of a loaded model: where it is the same, so is every bit of every logit.

Whatever enters the arithmetic of a token is part of it. What does not is left out, since a stream
may continue on any cell of the same id: ranks, instruction set, threads, block size, batch.
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from hashlib import sha256
from typing import Any

import torch

from quire.contract.outputs import ModelInfo
from worker_svc.cache.format import calibration_length
from worker_svc.device.base import Device
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.models.interface import ModelConfig
from worker_svc.models.registry import is_native

# Each to be raised whenever a change gives a model that was served before other bits. Of
# docs/numerics.md: where it changes an entry of tests/models/digests.json.
ARITHMETIC_VERSION = 1
# Of what a GPU computes with --invariant.
GPU_ARITHMETIC_VERSION = 2
ID_BYTES = 16


def numerics_id(
    info: ModelInfo,
    config: ModelConfig,
    checkpoint_digest: bytes,
    kv_cache_dtype: torch.dtype,
    device: Device,
    *,
    invariant: bool,
) -> str:
    """Return the id in hexadecimal; "" on a GPU without `invariant`, whose bits may vary.

    Args:
        info: of the model. Its max_model_len counts only where it picks frequencies of the rotary
            embedding, or is shorter than the text that a float8 cache is calibrated on.
        config: as the model's family reads it.
        checkpoint_digest: of config.json and of the tensors.
        kv_cache_dtype: type of the paged cache's elements.
        device: of the model.
        invariant: as in LoadOptions.
    """
    on_cpu = device.torch_device.type == "cpu"
    if not on_cpu and not invariant:
        return ""
    parts: dict[str, Any] = {
        "arithmetic": ARITHMETIC_VERSION if on_cpu else GPU_ARITHMETIC_VERSION,
        "checkpoint": checkpoint_digest.hex(),
        "dtype": info.dtype,
        "kv_cache_dtype": str(kv_cache_dtype),
        "quantization": info.quantization,
        "calibration": calibration_length(kv_cache_dtype, info.max_model_len),
        "rope": [rope.deciding_length(info.max_model_len) for rope in _ropes(config)],
        "eos_token_ids": info.eos_token_ids,
        # One arithmetic for all instruction sets of CPUs; one for each generation of GPUs.
        "device": "cpu" if on_cpu else device.isa,
    }
    if not is_native(info.architecture):
        parts["fallback"] = _of_fallback(on_cpu, info.max_model_len)
    return sha256(json.dumps(parts, sort_keys=True).encode()).digest()[:ID_BYTES].hex()


def _ropes(config: ModelConfig) -> Iterator[RopeParameters]:
    """Yield the rotary embeddings of a configuration, those of kinds of layers too."""
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        for each in value.values() if isinstance(value, dict) else (value,):
            if isinstance(each, RopeParameters):
                yield each


def _of_fallback(on_cpu: bool, max_model_len: int) -> dict[str, Any]:
    """Return what else enters the arithmetic of a model that `transformers` runs.

    Which length picks the frequencies, its code alone knows: the limit always counts.
    """
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability() if on_cpu else "",
        "max_model_len": max_model_len,
    }
