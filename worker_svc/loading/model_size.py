"""What a model takes, by what its files say of it: nothing is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any

from quire.contract.addresses import MAX_RANKS
from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from worker_svc.cache.shapes import token_bytes
from worker_svc.device.base import Device
from worker_svc.layers.decoder_stack import DecoderConfig
from worker_svc.layers.linear import HeadShare
from worker_svc.layers.partial_sums import own_parts
from worker_svc.layers.quantization import quantization
from worker_svc.loading.checkpoint import Checkpoint, open_checkpoint
from worker_svc.loading.digest import StoredBytes
from worker_svc.parallel.group import ParallelGroup

# Bits that a weight of a linear layer takes, scales included, by the method that holds it.
QUANTIZED_BITS = {"w8a8": 8.0, "w8": 8.0, "w4": 4.5}
# Of packed weights, e.g. of GPTQ.
_PACKED_NAMES = ("qweight", "weight_packed")
_BITS_OF_INTS = {"I32": 32, "I64": 64, "U8": 8, "I8": 8}
# What comes beside packed weights.
_NOT_LOADED = ("qzeros", "g_idx", "weight_zero_point", "weight_shape")
_NOT_LINEAR = ("embed", "lm_head", "wte", "wpe", "token_embd", "output.weight")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model takes.

    Attributes:
        architecture: as Hugging Face names it.
        dtype: type of activations.
        stored_bytes: of its tensors, in the files.
        weight_bytes: of all ranks, by how linear layers hold their weights: "none" as they are
            loaded, and the methods of QUANTIZED_BITS.
        token_bytes: of one token in the cache, over all layers, on one rank.
        max_model_len: most tokens of one sequence.
        ranks: numbers of workers that can share it, as far as its configuration tells.
    """

    architecture: str
    dtype: str
    stored_bytes: int
    weight_bytes: dict[str, int]
    token_bytes: int
    max_model_len: int
    ranks: tuple[int, ...]


def size_of(path: Path, options: LoadOptions, device: Device) -> ModelSize:
    """Return what a model takes on a device.

    Args:
        path: of its directory or file.
        options: how it is to be loaded.
        device: that is to compute it.

    Raises:
        ModelLoadError: it cannot be served.
    """
    checkpoint = open_checkpoint(path, options, device)
    alone = ParallelGroup()
    heads = _heads(checkpoint, alone)
    num_layers = checkpoint.config.num_layers
    with quantization(options.quantization):
        ranks = tuple(
            size for size in range(1, MAX_RANKS + 1) if _can_share(checkpoint, device, size)
        )
    return ModelSize(
        architecture=checkpoint.architecture,
        dtype=checkpoint.dtype_name,
        stored_bytes=sum(each.end - each.begin for each in checkpoint.tensors.values()),
        weight_bytes={
            method: _weight_bytes(checkpoint, bits)
            for method, bits in {"none": None, **QUANTIZED_BITS}.items()
        },
        token_bytes=num_layers * token_bytes(heads, checkpoint.kv_cache_dtype),
        max_model_len=checkpoint.max_model_len,
        ranks=ranks,
    )


def _weight_bytes(checkpoint: Checkpoint, bits: float | None) -> int:
    """Return about what weights take in memory, linear layers of so many bits a weight."""
    total = 0.0
    for name, each in checkpoint.tensors.items():
        if name.endswith(_NOT_LOADED):
            continue
        is_linear = len(each.shape) > 1 and not any(part in name for part in _NOT_LINEAR)
        own_bits = bits if bits is not None and is_linear else 8.0 * checkpoint.dtype.itemsize
        total += _num_weights(checkpoint, name, each) * own_bits / 8
    return round(total)


def _num_weights(checkpoint: Checkpoint, name: str, stored: StoredBytes) -> int:
    """Return the weights that a tensor is: of packed ones, several for an element."""
    count = prod(stored.shape)
    if not name.endswith(_PACKED_NAMES):
        return count
    quantization = checkpoint.hf.section("quantization_config")
    return count * _BITS_OF_INTS.get(stored.dtype, 32) // quantization.integer("bits", 4)


def _heads(checkpoint: Checkpoint, group: ParallelGroup) -> HeadShare:
    config, hf = checkpoint.config, checkpoint.hf
    if isinstance(config, DecoderConfig):
        return config.head_share(group)
    # One that transformers runs: the names that most of its configurations have.
    num_heads = hf.integer("num_attention_heads")
    head_dim = hf.integer("head_dim", hf.integer("hidden_size") // num_heads)
    return HeadShare(num_heads, hf.integer("num_key_value_heads", num_heads), head_dim, group)


def _can_share(checkpoint: Checkpoint, device: Device, size: int) -> bool:
    """Return whether so many ranks can share a model: its heads, and the inputs of its sums."""
    group, config = ParallelGroup(0, size), checkpoint.config
    if not isinstance(config, DecoderConfig):
        return size == 1
    try:
        heads = config.head_share(group)
        assert heads.heads and heads.kv_heads
        for features in {heads.total_heads * _value_dim(config), *_inner_sizes(config)}:
            group.part("features", features)
            own_parts("a sum", features, group, device.torch_device)
    except ModelLoadError:
        return False
    return True


def _value_dim(config: DecoderConfig) -> int:
    latent = getattr(config, "latent", None)
    return config.head_dim if latent is None else latent.v_head_dim


def _inner_sizes(config: Any) -> Iterator[int]:
    """Yield the features inside MLPs and experts."""
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name.endswith("intermediate_size") and isinstance(value, int):
            yield value
        elif is_dataclass(value):
            yield from _inner_sizes(value)
