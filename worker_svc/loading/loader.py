"""From a directory or a GGUF file to a model: its family, dtype, limits, this rank's slice."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.outputs import ModelInfo
from quire.contract.workers import LoadSpec
from quire.observe.log import get_logger
from quire.text_id import text_id
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.layers.device_linear import invariance
from worker_svc.layers.quantization import NONE, STORED, quantization
from worker_svc.loading.checkpoint import Checkpoint, open_checkpoint
from worker_svc.loading.gguf_checkpoint import GgufCheckpoint
from worker_svc.loading.hf_config import HfConfig
from worker_svc.loading.numerics_id import numerics_id
from worker_svc.loading.unread import require_all_read
from worker_svc.loading.weights import Weights, WeightTally
from worker_svc.models.fallback import FallbackForCausalLM
from worker_svc.models.interface import CausalLM
from worker_svc.parallel.group import ParallelGroup

log = get_logger()


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
    return _load(spec, served_model_name, parallel, device or CpuDevice(), is_draft=False)


@torch.inference_mode()
def _load(
    spec: LoadSpec, served_model_name: str, parallel: ParallelGroup, device: Device, is_draft: bool
) -> LoadedModel:
    """Read a model; see load_model. A draft model gets no id: no bit of an answer is of its."""
    options = spec.options
    checkpoint = open_checkpoint(Path(spec.model), options, device)
    reader, family = checkpoint.reader, checkpoint.family
    tally = WeightTally()
    weights = Weights(reader, checkpoint.dtype, device.torch_device, tally=tally)
    with (
        checkpoint.digest() as digest,
        invariance(options.invariant),
        quantization(options.quantization) as quantized,
    ):
        model = family.build(checkpoint.config, weights, parallel, checkpoint.max_model_len)
        if isinstance(reader, GgufCheckpoint):
            reader.require_all_read()
        elif parallel.rank == 0:  # the others read no biases of sums
            require_all_read(checkpoint, digest)
        checkpoint_digest = digest.result()
        has_id = not is_draft and _keeps_bits(model, checkpoint, device)
    hf = checkpoint.hf
    info = ModelInfo(
        name=served_model_name or spec.model,
        architecture=checkpoint.architecture,
        dtype=checkpoint.dtype_name,
        vocab_size=checkpoint.config.vocab_size,
        max_model_len=checkpoint.max_model_len,
        eos_token_ids=checkpoint.eos_token_ids,
        num_parameters=tally.num_parameters,
        numerics_id=numerics_id(checkpoint, checkpoint_digest, device) if has_id else "",
        text_id=text_id(checkpoint.path),
        quantization=options.quantization,
        embedding_size=model.hidden_size,
        is_matryoshka=hf.flag("is_matryoshka", False) or "matryoshka_dimensions" in hf,
        matryoshka_dimensions=_matryoshka_dimensions(hf, model.hidden_size),
        vectors_only=not family.has_head,
    )
    draft, weight_bytes = None, tally.loaded_bytes - quantized.saved_bytes
    if options.draft_model and parallel.rank == 0:
        draft = _load_draft_model(options, info, device)
        weight_bytes += draft.weight_bytes
    return LoadedModel(
        spec,
        info,
        model,
        checkpoint.dtype,
        parallel,
        device,
        checkpoint.kv_cache_dtype,
        weight_bytes,
        checkpoint_digest,
        draft,
    )


def _keeps_bits(model: CausalLM, checkpoint: Checkpoint, device: Device) -> bool:
    """Return whether a model's bits are proved: of families of our own, tests prove them."""
    if not isinstance(model, FallbackForCausalLM):
        return True
    from worker_svc.loading.fallback_proof import keeps_bits

    return keeps_bits(model, checkpoint.dtype, device, checkpoint.max_model_len)


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
        draft = _load(
            LoadSpec(options.draft_model, own), "", ParallelGroup(), device, is_draft=True
        )
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
