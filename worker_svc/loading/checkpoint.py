"""A model directory or GGUF file before it is loaded: what it says of itself, and its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.gguf_file import GgufFile, find_gguf
from quire.tokenizer_files import eos_token_id
from worker_svc.cache.format import resolve_kv_cache_dtype
from worker_svc.device.base import Device
from worker_svc.layers.quantization import NONE, STORED
from worker_svc.loading.digest import CheckpointDigest, StoredBytes, safetensors_bytes
from worker_svc.loading.dummy_weights import DummyCheckpoint
from worker_svc.loading.gguf_checkpoint import GgufCheckpoint
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.quant_method import nothing_stored
from worker_svc.loading.quantized_checkpoint import read_quantization
from worker_svc.loading.weights import GroupedReader, SafetensorsCheckpoint, TensorReader
from worker_svc.models.interface import ModelConfig
from worker_svc.models.native import is_native
from worker_svc.models.registry import ModelFamily, find_family

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that can be loaded.

    Attributes:
        path: of the directory or file.
        options: how it is to be loaded.
        hf: config.json, or what stands for it in a GGUF file.
        architecture: as Hugging Face names it.
        family: that builds it.
        config: as the family reads it.
        dtype_name: type of activations.
        kv_cache_dtype: type of the paged cache's elements.
        max_model_len: most tokens of one sequence.
        eos_token_ids: of the generation config, or else of config.json, and that of the tokenizer;
            those that the vocabulary lacks are left out.
        reader: of its tensors.
        tensors: where each tensor is, by its name; none where weights are made up.
    """

    path: Path
    options: LoadOptions
    hf: HfConfig
    architecture: str
    family: ModelFamily
    config: ModelConfig
    dtype_name: str
    kv_cache_dtype: torch.dtype
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    reader: TensorReader
    tensors: Mapping[str, StoredBytes]

    @property
    def dtype(self) -> torch.dtype:
        """Type of activations."""
        return DTYPES[self.dtype_name]

    def digest(self) -> CheckpointDigest:
        """Return what reads and digests it while its block runs."""
        return CheckpointDigest(self.hf, self.tensors)


def open_checkpoint(path: Path, options: LoadOptions, device: Device) -> Checkpoint:
    """Read what a model directory or GGUF file says of itself; no tensor yet.

    Args:
        path: of the directory or file.
        options: how it is to be loaded.
        device: that is to compute it.

    Raises:
        ModelLoadError: the model cannot be served; the message is one line.
    """
    gguf_file = find_gguf(path)
    gguf = None if gguf_file is None else GgufCheckpoint(GgufFile(gguf_file))
    hf = _read_config(path) if gguf is None else gguf.config
    architecture, family = find_family(hf)
    config = family.read(hf)
    dtype_name = _resolve_dtype(hf, options.dtype)
    kv_cache_dtype = resolve_kv_cache_dtype(options.kv_cache_dtype, DTYPES[dtype_name], device)
    max_model_len = _resolve_max_model_len(
        options.max_model_len, config.max_position_embeddings, config.max_context
    )
    eos_token_ids = _eos_token_ids(path, hf, config.vocab_size)
    _check_quantization(options.quantization, architecture)
    if config.value_size is not None and options.kv_cache_dtype != "auto":
        raise ModelLoadError(
            f"kv_cache_dtype: must be auto for {architecture}, whose values are part of its cached "
            f"keys, got {options.kv_cache_dtype!r}"
        )

    reader: TensorReader
    tensors: Mapping[str, StoredBytes] = {}
    if options.load_format == "dummy":
        if not is_native(architecture):
            raise ModelLoadError(f"load_format: dummy is not served for {architecture}")
        reader = DummyCheckpoint(device.torch_device)
    elif gguf is not None:
        reader, tensors = gguf, gguf.stored_bytes()
    else:
        checkpoint = SafetensorsCheckpoint(path)
        tensors = safetensors_bytes(checkpoint.files)
        reader = read_quantization(checkpoint, hf, is_native=is_native(architecture))
    if options.quantization == STORED and not isinstance(reader, GroupedReader):
        raise nothing_stored(path)
    return Checkpoint(
        path,
        options,
        hf,
        architecture,
        family,
        config,
        dtype_name,
        kv_cache_dtype,
        max_model_len,
        eos_token_ids,
        reader,
        tensors,
    )


def _check_quantization(method: str, architecture: str) -> None:
    if method == NONE:
        return
    if not is_native(architecture):
        raise ModelLoadError(
            f"quantization: must be none for {architecture}, whose layers are those of "
            f"transformers, got {method!r}"
        )


def _read_config(directory: Path) -> HfConfig:
    if not directory.is_dir():
        raise ModelLoadError(f"{directory}: no such directory")
    if not (directory / "config.json").is_file():
        raise ModelLoadError(
            f"{directory}: no config.json and no .gguf file; is it a Hugging Face model directory?"
        )
    return _with_architecture(HfConfig.read(directory / "config.json"))


def _with_architecture(hf: HfConfig) -> HfConfig:
    """Return a configuration that names an architecture: the decoder of its model_type, if none.

    Raises:
        ModelLoadError: it names none, and model_type is no decoder's.
    """
    if hf.texts("architectures"):
        return hf
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = hf.text("model_type", "")
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if found is None:
        raise hf.error(
            "architectures",
            f"must name a decoder, or model_type must be that of one, got none and {kind!r}",
        )
    return hf.extended(architectures=[found])


def _resolve_dtype(hf: HfConfig, asked: str) -> str:
    if asked != "auto":
        return asked
    key = "dtype" if "dtype" in hf else "torch_dtype"
    name = hf.text(key, "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise hf.error(key, f"must be one of {', '.join(DTYPES)}, got {name!r}; or set --dtype")
    return name


def _resolve_max_model_len(asked: int | None, default: int, longest: int) -> int:
    if asked is None:
        return default
    if asked > longest:
        raise ModelLoadError(f"max_model_len: must be at most the model's {longest}, got {asked}")
    return asked


def _eos_token_ids(directory: Path, hf: HfConfig, vocab_size: int) -> tuple[int, ...]:
    generation_config = directory / "generation_config.json"
    sources = [HfConfig.read(generation_config)] if generation_config.is_file() else []
    ids: tuple[int, ...] = ()
    for source in (*sources, hf):
        ids = ids or _in_vocabulary(source.token_ids("eos_token_id"), vocab_size)
    if not (directory / "config.json").is_file():
        return ids  # of a GGUF file, whose metadata is of the tokenizer, too
    # Fine-tunes often have the turns of another template than the model that they were made from,
    # and its configuration.
    own = eos_token_id(directory, ask_class=not ids)
    more = () if own is None or own in ids else _in_vocabulary((own,), vocab_size)
    return ids + more


def _in_vocabulary(ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    # No logit belongs to an id beyond the vocabulary, as some configurations have.
    return tuple(each for each in ids if 0 <= each < vocab_size)
