"""The numerics id of a loaded model: where it is the same, so is every bit of every logit.

Whatever enters the arithmetic of a token is part of it. What does not is left out, since a stream
may continue on any cell of the same id: ranks, instruction set, threads, block size, batch.
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from quire.contract.engine_options import LoadOptions
from quire.contract.outputs import ModelIds
from quire.contract.workers import LoadSpec
from quire.text_id import text_id
from worker_svc.cache.format import calibration_length
from worker_svc.device.base import Device
from worker_svc.layers.rope_scaling import RopeParameters
from worker_svc.loading.checkpoint import Checkpoint, open_checkpoint
from worker_svc.models.interface import ModelConfig
from worker_svc.models.native import is_native
from worker_svc.parallel.group import ParallelGroup

# Each to be raised whenever a change gives a model that was served before other bits. Of
# docs/numerics.md: where it changes an entry of tests/models/digests.json.
ARITHMETIC_VERSION = 3
# Of what a GPU computes with --invariant.
GPU_ARITHMETIC_VERSION = 5
# Of what is ours in a model that `transformers` runs: its linear layers, experts and routers, its
# attention, the padding of its rows. 1 left experts and routers to torch.
FALLBACK_VERSION = 2
ID_BYTES = 16


def numerics_id(checkpoint: Checkpoint, digest: bytes, device: Device) -> str:
    """Return the id in hexadecimal; "" on a GPU without `invariant`, whose bits may vary.

    Args:
        checkpoint: of the model. Its max_model_len counts only where it picks frequencies of the
            rotary embedding, or is shorter than the text that a float8 cache is calibrated on.
        digest: of config.json and of the tensors.
        device: of the model.
    """
    on_cpu, options = device.torch_device.type == "cpu", checkpoint.options
    if not on_cpu and not options.invariant:
        return ""
    cache_dtype, limit = checkpoint.kv_cache_dtype, checkpoint.max_model_len
    parts: dict[str, Any] = {
        "arithmetic": ARITHMETIC_VERSION if on_cpu else GPU_ARITHMETIC_VERSION,
        "checkpoint": digest.hex(),
        "dtype": checkpoint.dtype_name,
        "kv_cache_dtype": str(cache_dtype),
        "quantization": options.quantization,
        "calibration": calibration_length(cache_dtype, limit),
        "rope": [rope.deciding_length(limit) for rope in _ropes(checkpoint.config)],
        "eos_token_ids": checkpoint.eos_token_ids,
        # One arithmetic for all instruction sets of CPUs; one for each generation of GPUs.
        "device": "cpu" if on_cpu else device.isa,
    }
    if not is_native(checkpoint.architecture):
        parts["fallback"] = _of_fallback(on_cpu, limit)
    return sha256(json.dumps(parts, sort_keys=True).encode()).digest()[:ID_BYTES].hex()


def ids_of(path: Path, options: LoadOptions, device: Device) -> ModelIds:
    """Return the ids that a model would have once it is loaded.

    It is loaded only if `transformers` runs it: then its id hangs on what it computes.

    Raises:
        ModelLoadError: the model cannot be served; the message is one line.
    """
    checkpoint = open_checkpoint(path, options, device)
    if not is_native(checkpoint.architecture):
        from worker_svc.loading.loader import load_model

        return load_model(LoadSpec(str(path), options), "", ParallelGroup(), device).info.ids
    with checkpoint.digest() as digest:
        return ModelIds(numerics_id(checkpoint, digest.result(), device), text_id(path))


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
        "version": FALLBACK_VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability() if on_cpu else "",
        "max_model_len": max_model_len,
    }
