"""Layers that keep the integers of a checkpoint give the logits of layers that dequantise them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import llama_config, save_model
from tests.models.linked_ranks import run_ranks
from tests.models.test_published_formats import FORMATS, logits, save_both
from worker_svc.device.base import Device
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

# Of sizes whose parts hold whole groups.
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
# Kept on a GPU alone.
FLOAT8 = tuple(name for name, form in FORMATS.items() if form.is_float)
# Groups in any order, and here numbers that are no integers, are dequantised as before.
NOT_KEPT = ("gptq with desc_act", *FLOAT8)


def weight_bytes(directory: Path, device: Device | None = None, **options: str) -> int:
    spec = LoadSpec(str(directory), LoadOptions(**options))  # type: ignore[arg-type]
    return load_model(spec, "tiny", ParallelGroup(), device).weight_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantised_weights(name: str, dtype: str, tmp_path: Path) -> None:
    stored, _ = save_both(tmp_path, FORMATS[name], **WIDE)
    expected = logits(stored, dtype=dtype)
    assert torch.equal(logits(stored, dtype=dtype, quantization="stored"), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_they_take_the_memory_of_integers(name: str, tmp_path: Path) -> None:
    stored, _ = save_both(tmp_path, FORMATS[name], **WIDE)
    whole = weight_bytes(stored, dtype="float32")
    kept = weight_bytes(stored, dtype="float32", quantization="stored")
    if name in NOT_KEPT:
        assert kept == whole
    else:
        # Embedding and head are whole.
        assert kept < whole * (0.45 if FORMATS[name].bits == 8 else 0.35)


@pytest.mark.parametrize("name", ["awq", "gptq of 8 bits", "gptq, symmetric, one group"])
def test_ranks_share_them(name: str, tmp_path: Path) -> None:
    stored, _ = save_both(tmp_path, FORMATS[name], **WIDE)
    expected = logits(stored, quantization="stored")

    def of_rank(parallel: ParallelGroup) -> torch.Tensor:
        return logits(stored, quantization="stored", parallel=parallel)

    assert all(torch.equal(each, expected) for each in run_ranks(2, of_rank))


def test_a_layer_that_is_stored_in_two_ways_is_dequantised_and_counted_once(
    tmp_path: Path,
) -> None:
    """Each layer of ours lacks the integers of one of its sources."""
    stored, plain = save_both(tmp_path, FORMATS["awq"], **WIDE)
    tensors, weights = (load_file(each / "model.safetensors") for each in (stored, plain))
    for name, weight in weights.items():
        if name.endswith(("k_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")):
            for suffix in ("qweight", "qzeros", "scales"):
                del tensors[name.removesuffix("weight") + suffix]
            tensors[name] = weight
    save_file(tensors, stored / "model.safetensors")
    assert torch.equal(logits(stored, quantization="stored"), logits(stored))
    whole = weight_bytes(stored, dtype="float32")
    assert weight_bytes(stored, dtype="float32", quantization="stored") == whole


def test_a_checkpoint_without_integers_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    with pytest.raises(ModelLoadError, match="quantization: must be another than stored"):
        logits(tmp_path, quantization="stored")
