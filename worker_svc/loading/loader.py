"""From a directory or a GGUF file to a model: its family, dtype, limits, this rank's slice."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.outputs import ModelInfo
from quire.contract.workers import LoadSpec
from quire.gguf_file import GgufFile, find_gguf
from quire.observe.log import get_logger
from quire.text_id import text_id
from worker_svc.cache.format import resolve_kv_cache_dtype
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.layers.device_linear import invariance
from worker_svc.layers.quantization import NONE, STORED, quantization
from worker_svc.loading.digest import CheckpointDigest, StoredBytes, safetensors_bytes
from worker_svc.loading.dummy_weights import DummyCheckpoint
from worker_svc.loading.gguf_checkpoint import GgufCheckpoint
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.numerics_id import numerics_id
from worker_svc.loading.quantized_checkpoint import read_quantization
from worker_svc.loading.weights import (
    GroupedReader,
    SafetensorsCheckpoint,
    TensorReader,
    Weights,
    WeightTally,
)
from worker_svc.models.interface import CausalLM
from worker_svc.models.registry import find_family, is_native
from worker_svc.parallel.group import ParallelGroup

log = get_logger()

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        spec: what to load.
        info: what clients see of the model.
        model: the layers, ready to compute.
        dtype: type of activations.
        parallel: group of ranks that computes it.
        device: device that computes it.
        kv_cache_dtype: type of the paged cache's elements.
        weight_bytes: memory of this rank's slice of the weights, with those of the draft model.
        checkpoint_digest: of config.json and of the tensors; see CheckpointDigest.
        draft: the draft model, on rank 0 where there is one; whole, whatever the number of ranks.
    """

    spec: LoadSpec
    info: ModelInfo
    model: CausalLM
    dtype: torch.dtype
    parallel: ParallelGroup
    device: Device
    kv_cache_dtype: torch.dtype
    weight_bytes: int
    checkpoint_digest: bytes
    draft: "LoadedModel | None" = None


@torch.inference_mode()
def load_model(
    spec: LoadSpec,
    served_model_name: str,
    parallel: ParallelGroup,
    device: Device | None = None,
) -> LoadedModel:
    """Read a model directory or a GGUF file.

    Args:
        spec: which slice of which model.
        served_model_name: name that requests use; empty takes its path.
        parallel: group of ranks, already joined.
        device: device of the model; None for the CPU.

    Raises:
        ModelLoadError: the model cannot be served; the message is one line.
    """
    device = device or CpuDevice()
    model_path = Path(spec.model)
    gguf_file = find_gguf(model_path)
    gguf = None if gguf_file is None else GgufCheckpoint(GgufFile(gguf_file))
    hf = _read_config(model_path) if gguf is None else gguf.config
    architecture, family = find_family(hf)
    config = family.read(hf)
    dtype_name = _resolve_dtype(hf, spec.options.dtype)
    kv_cache_dtype = resolve_kv_cache_dtype(spec.options.kv_cache_dtype, DTYPES[dtype_name], device)
    max_model_len = _resolve_max_model_len(
        spec.options.max_model_len, config.max_position_embeddings, config.max_context
    )
    eos_token_ids = _eos_token_ids(model_path, hf)

    _check_quantization(spec.options.quantization, architecture, device)
    tally = WeightTally()
    is_dummy = spec.options.load_format == "dummy"
    if is_dummy and not is_native(architecture):
        raise ModelLoadError(f"load_format: dummy is not served for {architecture}")
    reader: TensorReader = DummyCheckpoint(device.torch_device)
    tensors: dict[str, StoredBytes] = {}
    if gguf is not None and not is_dummy:
        reader, tensors = gguf, gguf.stored_bytes()
    elif not is_dummy:
        checkpoint = SafetensorsCheckpoint(model_path)
        tensors = safetensors_bytes(checkpoint.files)
        reader = read_quantization(checkpoint, hf, is_native=is_native(architecture))
    if spec.options.quantization == STORED and not isinstance(reader, GroupedReader):
        raise ModelLoadError(
            "quantization: must be another than stored for a checkpoint that holds no integers "
            f"of GPTQ, AWQ or compressed-tensors, got {spec.model}"
        )
    weights = Weights(reader, DTYPES[dtype_name], device.torch_device, tally=tally)
    with (
        CheckpointDigest(hf, tensors) as digest,
        invariance(spec.options.invariant),
        quantization(spec.options.quantization) as quantized,
    ):
        model = family.build(config, weights, parallel, max_model_len)
        if gguf is not None and not is_dummy:
            gguf.require_all_read()
        checkpoint_digest = digest.result()
    info = ModelInfo(
        name=served_model_name or spec.model,
        architecture=architecture,
        dtype=dtype_name,
        vocab_size=config.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        num_parameters=tally.num_parameters,
        quantization=spec.options.quantization,
        text_id=text_id(model_path),
        embedding_size=model.hidden_size,
        is_matryoshka=hf.flag("is_matryoshka", False) or "matryoshka_dimensions" in hf,
        matryoshka_dimensions=_matryoshka_dimensions(hf, model.hidden_size),
        vectors_only=not family.has_head,
    )
    numerics = numerics_id(
        info, config, checkpoint_digest, kv_cache_dtype, device, invariant=spec.options.invariant
    )
    draft, weight_bytes = None, tally.loaded_bytes - quantized.saved_bytes
    if spec.options.draft_model and parallel.rank == 0:
        draft = _load_draft_model(spec.options, info, device)
        weight_bytes += draft.weight_bytes
    return LoadedModel(
        spec,
        replace(info, numerics_id=numerics),
        model,
        DTYPES[dtype_name],
        parallel,
        device,
        kv_cache_dtype,
        weight_bytes,
        checkpoint_digest,
        draft,
    )


def _matryoshka_dimensions(hf: HfConfig, size: int) -> tuple[int, ...]:
    """Return how many elements the vectors of a model may be cut to; empty where it names none.

    Raises:
        ModelLoadError: they are out of bounds.
    """
    if "matryoshka_dimensions" not in hf:
        return ()
    numbers = tuple(map(int, hf.numbers("matryoshka_dimensions")))
    if not all(1 <= number <= size for number in numbers):
        raise hf.error("matryoshka_dimensions", f"must be in [1, {size}], got {list(numbers)}")
    return numbers


def _load_draft_model(options: LoadOptions, target: ModelInfo, device: Device) -> LoadedModel:
    """Read the directory of a draft model, which must know the same tokens.

    Raises:
        ModelLoadError: it cannot be served, or not beside the target.
    """
    # Drafts of any kind will do.
    method = NONE if options.quantization == STORED else options.quantization
    own = replace(options, draft_model="", max_model_len=target.max_model_len, quantization=method)
    try:
        draft = load_model(LoadSpec(options.draft_model, own), "", ParallelGroup(), device)
    except ModelLoadError as error:
        raise ModelLoadError(f"draft_model: {error}") from error
    if draft.info.vectors_only:
        raise ModelLoadError(
            f"draft_model: must have a language-model head, got {draft.info.architecture}"
        )
    if draft.info.vocab_size > target.vocab_size:
        raise ModelLoadError(
            f"draft_model: vocabulary must be at most the model's {target.vocab_size} tokens, "
            f"got {draft.info.vocab_size}"
        )
    if draft.info.text_id != target.text_id:
        # Chat templates differ within a family; other tokens make bad drafts, no wrong output.
        log.warning("draft_tokenizer_differs", draft_model=options.draft_model)
    return draft


def _check_quantization(method: str, architecture: str, device: Device) -> None:
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
    return HfConfig.read(directory / "config.json")


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


def _eos_token_ids(directory: Path, hf: HfConfig) -> tuple[int, ...]:
    generation_config = directory / "generation_config.json"
    if generation_config.is_file():
        ids = HfConfig.read(generation_config).token_ids("eos_token_id")
        if ids:
            return ids
    return hf.token_ids("eos_token_id")
