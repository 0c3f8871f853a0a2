"""Decoders that transformers runs: the same tokens as a family of our own, and who is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    MambaConfig,
    ModernBertConfig,
    PreTrainedConfig,
    T5Config,
    XLMRobertaConfig,
)
from transformers.models.olmo.modeling_olmo import OlmoMLP

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import (
    FALLBACKS,
    VOCAB_SIZE,
    edit_config,
    gpt2_config,
    llama_config,
    mistral_config,
    save_model,
)
from tests.models.driver import Driver, load_runner
from worker_svc.device.cpu import CpuDevice
from worker_svc.layers.attention import PagedAttention
from worker_svc.loading import fallback_proof
from worker_svc.loading.loader import load_model
from worker_svc.loading.numerics_id import ids_of
from worker_svc.models import attention_interface
from worker_svc.models.fallback import FallbackForCausalLM
from worker_svc.models.registry import FAMILIES
from worker_svc.models.trial import Rows, Trial
from worker_svc.parallel.group import ParallelGroup

PROMPTS = [[5, 9, 77, 30], list(range(20, 60))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep results of proofs apart from those of other tests, whose code may be patched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("make", [llama_config, mistral_config, gpt2_config])
def test_a_family_of_our_own_gives_the_same_tokens(
    make: Callable[..., PreTrainedConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, make())
    own = Driver(load_runner(tmp_path)).generate(PROMPTS, 20)
    monkeypatch.setattr("worker_svc.models.registry.FAMILIES", {})
    runner = load_runner(tmp_path)
    assert isinstance(runner._model, FallbackForCausalLM)
    assert Driver(runner).generate(PROMPTS, 20) == own
    assert FAMILIES, "the real families are untouched"


def mamba() -> PreTrainedConfig:
    return MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (mamba, "MambaForCausalLM is not served: its attention does not go through"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_by_name(
    make: Callable[[], PreTrainedConfig], reason: str, tmp_path: Path
) -> None:
    save_model(tmp_path, make())
    with pytest.raises(ModelLoadError, match=reason):
        load_runner(tmp_path)


def test_models_that_keep_their_bits_are_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(fallback_proof.log, "warning", lambda event, **what: warnings.append(event))
    for name in ("olmo", "gpt_oss"):
        save_model(tmp_path / name, FALLBACKS[name]())
        load_runner(tmp_path / name)
    assert not warnings


def count_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows that depend, in their last bits, on how many there are."""
    return rows * (1 + 1e-6 * rows.shape[-2])


@pytest.mark.parametrize("part", ["company", "chunks", "head"])
def test_a_model_whose_bits_depend_on_others_has_no_numerics_id(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, str]] = []
    monkeypatch.setattr(fallback_proof.log, "warning", lambda event, **what: warnings.append(what))
    save_model(tmp_path, FALLBACKS["olmo"]())
    options = LoadOptions(dtype="float32")
    assert load_model(LoadSpec(str(tmp_path), options), "", ParallelGroup()).info.numerics_id
    if part == "company":
        forward = OlmoMLP.forward
        monkeypatch.setattr(OlmoMLP, "forward", lambda self, x: count_rows(forward(self, x)))
    elif part == "chunks":
        real = FallbackForCausalLM.forward

        def by_step(self: Any, ids: torch.Tensor, *others: Any) -> torch.Tensor:
            return real(self, ids, *others) * (1 + 1e-6 * (len(ids) < 3))

        monkeypatch.setattr(FallbackForCausalLM, "forward", by_step)
    else:
        head = FallbackForCausalLM.compute_logits
        monkeypatch.setattr(
            FallbackForCausalLM, "compute_logits", lambda self, x: count_rows(head(self, x))
        )
    loaded = load_model(LoadSpec(str(tmp_path), options), "", ParallelGroup())
    assert loaded.info.numerics_id == ""
    (warning,) = warnings
    assert warning["architecture"] == "OlmoForCausalLM"
    assert warning["reason"] == f"bits depend on {part}"
    assert warning["lost"] == "its streams are not moved or resumed as equal"
    assert ids_of(tmp_path, options, CpuDevice()) == loaded.info.ids


@pytest.mark.parametrize("limit", [2, 30, 256])
def test_the_proof_is_no_longer_than_a_sequence_may_be(limit: int, tmp_path: Path) -> None:
    save_model(tmp_path, FALLBACKS["olmo"]())
    spec = LoadSpec(str(tmp_path), LoadOptions(max_model_len=limit))
    assert load_model(spec, "", ParallelGroup()).info.numerics_id


def test_torch_s_threads_are_in_no_bit(tmp_path: Path) -> None:
    """Three would cut the elements of an activation where no vector ends."""
    save_model(tmp_path, FALLBACKS["olmo"](intermediate_size=1001))
    runner = load_runner(tmp_path, dtype="float32")
    run = Trial(runner._model, torch.float32, torch.device("cpu"), length=40, places=3)
    sequences = [Rows(run.text(40, place), 0, 40, place) for place in range(3)]
    before = torch.get_num_threads()
    found: dict[int, torch.Tensor] = {}
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found[count] = run.step(sequences)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[1], found[3])


def test_a_quantised_model_is_refused_by_name(tmp_path: Path) -> None:
    save_model(tmp_path, FALLBACKS["gpt_oss"]())
    edit_config(tmp_path, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(ModelLoadError, match="quantization_config: quantized weights are not serv"):
        load_runner(tmp_path)


def test_what_is_no_decoder_is_refused_by_name(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="T5ForConditionalGeneration is not served: model_ty"):
        load_runner(tmp_path)
    edit_config(tmp_path, architectures=["HomeGrownForCausalLM"])
    with pytest.raises(ModelLoadError, match="HomeGrownForCausalLM is not served: transformers"):
        load_runner(tmp_path)


@pytest.mark.parametrize("config", [BertConfig, XLMRobertaConfig, ModernBertConfig])
def test_an_encoder_is_refused_by_name(config: Any, tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    name = config.__name__.replace("Config", "Model")
    config(architectures=[name]).save_pretrained(tmp_path)
    words = (
        f"architectures: {name} is not served: model_type {config.model_type} has no causal decoder"
        " of that name, and vectors are those of a decoder's last token"
    )
    with pytest.raises(ModelLoadError) as caught:
        load_runner(tmp_path)
    assert caught.value.message == words


def test_a_model_that_computes_differently_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutWindow(PagedAttention):
        def __init__(self, layer: int, scale: float, window: int | None, **options: Any) -> None:
            super().__init__(layer, scale, None, **options)

    save_model(tmp_path, mistral_config())
    monkeypatch.setattr("worker_svc.models.registry.FAMILIES", {})
    monkeypatch.setattr(attention_interface, "PagedAttention", WithoutWindow)
    with pytest.raises(ModelLoadError, match="its logits are off by"):
        load_runner(tmp_path)


def test_several_workers_are_refused(tmp_path: Path) -> None:
    from worker_svc.loading.hf_config import HfConfig
    from worker_svc.loading.weights import SafetensorsCheckpoint, Weights
    from worker_svc.models.fallback import build_fallback
    from worker_svc.models.fallback_config import read_fallback

    save_model(tmp_path, FALLBACKS["olmo"]())
    config = read_fallback(HfConfig.read(tmp_path / "config.json"))
    weights = Weights(SafetensorsCheckpoint(tmp_path), torch.float32, torch.device("cpu"))
    with pytest.raises(
        ModelLoadError, match="tensor_parallel_size: must be 1 for OlmoForCausalLM, got 2"
    ):
        build_fallback(config, weights, ParallelGroup(0, 2), 64)
