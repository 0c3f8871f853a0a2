"""What a model's files say against what is asked of it: read in milliseconds, without torch.

A worker refuses the same and more, but some seconds later: nothing that would run is refused here.
"""

from contextlib import suppress
from pathlib import Path

from launch.architecture_check import check_architecture, check_heads
from launch.cluster.config import ClusterConfig
from launch.model_files import ModelFiles, read_model
from quire.contract.engine_options import GIB
from quire.contract.errors import ConfigError, ModelLoadError
from quire.gguf_file import is_model
from worker_svc.cache.block_size import check_block_size
from worker_svc.device.host_memory import available_memory_bytes
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.quant_method import CONFIG_KEY, nothing_stored

# Names that families have for their query heads, and for the longest sequence.
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
# Where an order of additions is defined, a sum has as many parts at most: docs/numerics.md.
MAX_PARTS = 8
DEVICES = Path("/dev")
# What is there where CUDA may find a GPU: of a machine, of WSL2, of a Jetson.
GPUS = ("nvidia[0-9]*", "dxg", "nvhost-gpu", "nvgpu")
# What a KV cache holds on CPUs.
CPU_CACHES = ("auto", "int8")


def check_model(config: ClusterConfig) -> None:
    """Check that a model's files are whole, and can be served as they are asked to be.

    Raises:
        ConfigError: they are not, or cannot; names file or option, and what to do.
    """
    try:
        _check_model(config)
    except ModelLoadError as error:
        raise ConfigError(error.message) from None


def _check_model(config: ClusterConfig) -> None:
    """Check it.

    Raises:
        ConfigError: an option does not go with it.
        ModelLoadError: a file of it is wrong; names it.
    """
    model = read_model(config.model, "model")
    check_architecture(
        model.hf,
        tensor_parallel_size=config.tensor_parallel_size,
        quantization=config.quantization,
        load_format=config.load_format,
    )
    if config.quantization == "stored" and CONFIG_KEY not in model.hf:
        raise nothing_stored(config.model)
    check_heads(model.hf)
    num_heads, longest = _num_heads(model.hf), _longest(model.hf)
    _check_ranks(num_heads, config)
    check_block_size(config.block_size)
    _check_cache(config)
    _check_length(longest, config.max_model_len)
    draft = _read_draft(config, _vocab_size(model.hf)) if config.draft_model else None
    free = _free_bytes()
    if free is not None:
        _check_memory(config, free)
    if config.load_format != "dummy":
        _check_weights(config, model, draft, free)


def on_cpu(device: str) -> bool:
    """Return whether workers compute on the CPU, as far as that shows without asking CUDA."""
    return device == "cpu" or (
        device == "auto" and not any(any(DEVICES.glob(each)) for each in GPUS)
    )


def _free_bytes() -> int | None:
    """Return the free memory of this machine, in bytes; None if it does not report it."""
    with suppress(ConfigError):
        return available_memory_bytes()
    return None


def _vocab_size(hf: HfConfig) -> int:
    """Return the tokens of a vocabulary; 0 where that is not told."""
    return hf.integer("vocab_size", 0, least=0)


def _read_draft(config: ClusterConfig, most: int) -> ModelFiles:
    """Return the draft model, which must be served beside the model that it drafts for.

    Args:
        config: of the cluster.
        most: tokens of that model's vocabulary; 0 if that is not known.

    Raises:
        ConfigError: it cannot be.
    """
    path = Path(config.draft_model)
    try:
        if not is_model(path):
            raise ConfigError(
                f"draft_model: must be a directory or a .gguf file that exists, got {path}"
            )
        draft = read_model(path, "draft_model")
        check_architecture(
            draft.hf,
            tensor_parallel_size=1,
            quantization=_of_draft(config.quantization),
            load_format=config.load_format,
        )
        check_heads(draft.hf)
        size = _vocab_size(draft.hf)
    except ModelLoadError as error:
        raise ConfigError(f"draft_model: {error.message}") from None
    if 0 < most < size:
        raise ConfigError(
            f"draft_model: vocabulary must be at most the model's {most} tokens, got {size}"
        )
    return draft


def _of_draft(quantization: str) -> str:
    """Return the quantisation of a draft model, whose checkpoint may be any."""
    return "none" if quantization == "stored" else quantization


def _num_heads(hf: HfConfig) -> int | None:
    """Return the query heads of a layer; None where that is not told in a way that is read here."""
    heads = hf.spelling(*_HEADS)
    return hf.integer(heads) if heads in hf else None


def _longest(hf: HfConfig) -> int | None:
    """Return the tokens of the longest sequence; None where only its worker knows."""
    lengths = [hf.integer(each) for each in _LENGTHS if each in hf]
    # A stretched rope may serve more than that.
    return max(lengths) if lengths and not _is_stretched(hf) else None


def _is_stretched(hf: HfConfig) -> bool:
    for key in ("rope_parameters", "rope_scaling"):
        section = hf.section(key)
        kind = section.text("rope_type", section.text("type", "default"))
        # Families with several kinds of layers have a section for each.
        has_several = any(each.endswith("_attention") for each in section.names())
        if kind != "default" or "factor" in section or has_several:
            return True
    return False


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


def _check_cache(config: ClusterConfig) -> None:
    """Check that CPUs can hold the type of the KV cache; which types a GPU has, CUDA tells.

    Raises:
        ConfigError: they cannot.
    """
    if on_cpu(config.device) and config.kv_cache_dtype not in CPU_CACHES:
        raise ConfigError(
            f"kv_cache_dtype: must be one of {', '.join(CPU_CACHES)} on cpu, "
            f"got {config.kv_cache_dtype!r}"
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


def _check_weights(
    config: ClusterConfig, model: ModelFiles, draft: ModelFiles | None, free: int | None
) -> None:
    """Check that weights are whole, of known types, and fit the memory.

    Args:
        config: of the cluster.
        model: that is to be served.
        draft: its draft model, if there is one.
        free: bytes of memory; None if that is not known.

    Raises:
        ConfigError: they are not, or do not; names file or tensor.
        ModelLoadError: config.json of the model names no type of them.
    """
    num_bytes = model.weight_bytes("model", config.dtype, config.quantization)
    if draft is not None:
        own = _of_draft(config.quantization)
        try:
            num_bytes += draft.weight_bytes("draft_model", config.dtype, own)
        except ModelLoadError as error:
            raise ConfigError(f"draft_model: {error.message}") from None
    if on_cpu(config.device) and free is not None and num_bytes > free:
        raise ConfigError(
            f"model: must fit the memory that is free, {free / GIB:.1f} GiB, got "
            f"{num_bytes / GIB:.1f} GiB of weights; --quantization w8 or w4 holds them in less"
        )
