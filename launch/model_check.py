"""What a model's files say against what is asked of it: read in milliseconds, without torch.

A worker refuses the same and more, but some seconds later: nothing that would run is refused here.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.architecture_check import check_architecture
from launch.cluster.config import ClusterConfig
from launch.weight_files import stored_tensors
from quire.contract.engine_options import GIB
from quire.contract.errors import ConfigError, ModelLoadError
from quire.gguf_file import GgufFile, find_gguf
from worker_svc.cache.block_size import check_block_size
from worker_svc.device.host_memory import available_memory_bytes
from worker_svc.loading.hf_config import HfConfig

# Of an element, by the names of safetensors.
_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
_FLOATS = ("F64", "F32", "F16", "BF16")
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
# What a weight takes; layers that stay as they are make it a little more.
_QUANTIZED_BYTES = {"w8a8": 1.0, "w8": 1.0, "w4": 0.5}
# Names that families have for their query heads, and for the longest sequence.
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
# Where an order of additions is defined, a sum has as many parts at most: docs/numerics.md.
MAX_PARTS = 8


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a model says of itself; None where it does not, or in a way that is not read here.

    Attributes:
        num_heads: query heads of a layer.
        longest: tokens of one sequence.
        dtype: type of activations; "" where that is not told.
    """

    num_heads: int | None
    longest: int | None
    dtype: str = ""


def check_model(config: ClusterConfig) -> None:
    """Check that a model's files are whole, and can be served as they are asked to be.

    Raises:
        ConfigError: they are not, or cannot; names file or option, and what to do.
    """
    try:
        gguf = find_gguf(config.model)
        if gguf is None:
            _check_directory(config.model)
            hf = HfConfig.read(config.model / "config.json")
            check_architecture(hf, config)
            sizes = _hf_sizes(hf)
        else:
            sizes = _gguf_sizes(GgufFile(gguf))
    except ModelLoadError as error:
        raise ConfigError(error.message) from None
    _check_ranks(sizes.num_heads, config)
    check_block_size(config.block_size)
    _check_length(sizes.longest, config.max_model_len)
    free = _free_bytes()
    if free is not None:
        _check_memory(config, free)
    # What weights of GGUF become in memory, only their blocks tell.
    if gguf is None and config.load_format != "dummy":
        _check_weights(config, sizes.dtype if config.dtype == "auto" else config.dtype, free)


def on_cpu(device: str) -> bool:
    """Return whether workers compute on the CPU, as far as that shows without asking CUDA."""
    return device == "cpu" or (device == "auto" and not any(Path("/dev").glob("nvidia[0-9]*")))


def _free_bytes() -> int | None:
    """Return the free memory of this machine, in bytes; None if it does not report it."""
    with suppress(ConfigError):
        return available_memory_bytes()
    return None


def _check_directory(model: Path) -> None:
    """Check that a directory is a model's.

    Raises:
        ConfigError: it is not.
    """
    if (model / "config.json").is_file():
        return
    if (model / "adapter_config.json").is_file():
        base = ""
        with suppress(ModelLoadError):
            base = HfConfig.read(model / "adapter_config.json").text("base_model_name_or_path", "")
        raise ConfigError(
            f"model: must be a whole model, got an adapter{f' of {base}' if base else ''} in "
            f"{model}; merge it into the model's weights"
        )
    raise ConfigError(f"model: must have a config.json or be a .gguf file, got {model}")


def _hf_sizes(hf: HfConfig) -> _Sizes:
    dtype = "dtype" if "dtype" in hf else "torch_dtype"
    lengths = [hf.integer(each) for each in _LENGTHS if each in hf]
    heads = hf.spelling(*_HEADS)
    return _Sizes(
        num_heads=hf.integer(heads) if heads in hf else None,
        # A stretched rope may serve more than that, and its worker knows how much.
        longest=max(lengths) if lengths and not _is_stretched(hf) else None,
        dtype=hf.text(dtype, "float32").removeprefix("torch."),
    )


def _is_stretched(hf: HfConfig) -> bool:
    for key in ("rope_parameters", "rope_scaling"):
        section = hf.section(key)
        kind = section.text("rope_type", section.text("type", "default"))
        # Families with several kinds of layers have a section for each.
        has_several = any(each.endswith("_attention") for each in section.names())
        if kind != "default" or "factor" in section or has_several:
            return True
    return False


def _gguf_sizes(file: GgufFile) -> _Sizes:
    architecture = file.metadata.get("general.architecture")

    def integer(key: str) -> int | None:
        value: Any = file.metadata.get(f"{architecture}.{key}")
        return value if isinstance(value, int) else None

    is_stretched = any(key.startswith(f"{architecture}.rope.scaling.") for key in file.metadata)
    return _Sizes(
        num_heads=integer("attention.head_count"),
        longest=None if is_stretched else integer("context_length"),
    )


def _check_ranks(num_heads: int | None, config: ClusterConfig) -> None:
    """Check that workers can share the heads of a layer, and the parts of its sums.

    Raises:
        ConfigError: they cannot.
    """
    size = config.tensor_parallel_size
    if num_heads is not None and num_heads % size:
        raise ConfigError(
            f"tensor_parallel_size: must divide num_attention_heads ({num_heads}), got {size}"
        )
    if (on_cpu(config.device) or config.invariant) and MAX_PARTS % size:
        raise ConfigError(
            f"tensor_parallel_size: must divide {MAX_PARTS}, since each sum is added up in at most "
            f"as many parts, got {size}"
        )


def _check_length(longest: int | None, asked: int | None) -> None:
    """Check that a model can have sequences as long as they are asked to be.

    Raises:
        ConfigError: it cannot.
    """
    if longest is not None and asked is not None and asked > longest:
        raise ConfigError(f"max_model_len: must be at most the model's {longest}, got {asked}")


def _check_memory(config: ClusterConfig, free: int) -> None:
    """Check that caches and swap space of all workers fit the free memory of this machine.

    Raises:
        ConfigError: it has not.
    """
    asked = {"swap_space": config.swap_space}
    if on_cpu(config.device):
        asked["kv_cache_gib"] = config.kv_cache_gib
    num_workers = config.tensor_parallel_size
    for name, gib in asked.items():
        most = free / GIB / num_workers
        if gib is not None and gib > most:
            each = f" for each of {num_workers} workers" if num_workers > 1 else ""
            raise ConfigError(
                f"{name}: must be at most the free memory, {most:.1f} GiB{each}, got {gib:g} GiB"
            )


def _check_weights(config: ClusterConfig, dtype: str, free: int | None) -> None:
    """Check that the weights of a directory are whole, of known types, and fit the memory.

    Args:
        config: of the cluster.
        dtype: that they are loaded in; another word than one of the types for that of the files.
        free: bytes of memory; None if that is not known.

    Raises:
        ConfigError: they are not, or do not; names file or tensor.
    """
    num_bytes = 0.0
    for tensor in stored_tensors(config.model):
        if tensor.dtype not in _BYTES:
            raise ConfigError(
                f"model: tensor {tensor.name} must be of one of {', '.join(_BYTES)}, "
                f"got {tensor.dtype}"
            )
        stored = _BYTES[tensor.dtype]
        each: float = stored
        if tensor.dtype in _FLOATS:
            each = _QUANTIZED_BYTES.get(
                config.quantization, _BYTES.get(_DTYPES.get(dtype, ""), stored)
            )
        num_bytes += tensor.num_bytes * each / stored
    if on_cpu(config.device) and free is not None and num_bytes > free:
        raise ConfigError(
            f"model: must fit the memory that is free, {free / GIB:.1f} GiB, got "
            f"{num_bytes / GIB:.1f} GiB of weights; --quantization w8 or w4 holds them in less"
        )
