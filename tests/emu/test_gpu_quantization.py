"""Quantised layers on a GPU, emulated: in int8 the bits of the CPU's, in a worker its tokens.

Of 8 and 4 bits, the bits of layers over the dequantised weights.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.contract.errors import ModelLoadError
from tests.emu.emulated_device import thread_of
from tests.emu.test_gpu_worker import assert_replayed, inputs_of
from tests.factories import CONFIGS, FALLBACKS, save_model
from tests.models.driver import Driver, load_runner
from tests.models.linked_ranks import run_ranks
from tests.models.test_published_formats import FORMATS, save_both
from tests.models.test_published_formats import logits as stored_logits
from tests.models.test_stored_integers import FLOAT8 as STORED_FLOAT8
from tests.models.test_stored_integers import WIDE as WIDE_PARTS
from tests.models.test_stored_integers import weight_bytes
from worker_svc.device.cuda import CudaDevice
from worker_svc.layers import moe, quantization
from worker_svc.layers.device_linear import fixed_tile_linear
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.int8_linear import Int8Linear
from worker_svc.parallel.group import ParallelGroup

# Experts that hold whole groups, of each part.
EXPERTS: dict[str, dict[str, int]] = {
    "mixtral": {},
    "qwen3_moe": {"moe_intermediate_size": 256},
    "deepseek_v3": {"moe_intermediate_size": 256, "v_head_dim": 64, "q_lora_rank": 64},
}
PROMPTS = [[5, 17, 3, 99, 42], [7, 8], list(range(20, 60))]
METHODS = ("w8a8", "w8", "w4")
# Parts of K that hold whole groups, and a head size of tensor cores.
WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 2}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_int8_layers_have_the_bits_of_the_cpus(
    gpu: CudaDevice, dtype: torch.dtype, num_ranks: int
) -> None:
    """Weights, quantised there, and products: of each rank's share of K."""
    x, weight = random(17, 208, seed=1).to(dtype), random(70, 208, seed=2).to(dtype)
    weight[5] = 0
    weight[6] *= 2.0**-100
    bias = random(70, seed=3).to(dtype)
    shares = zip(x.chunk(num_ranks, dim=1), weight.chunk(num_ranks, dim=1), strict=True)
    for own_x, own_weight in shares:
        parts = 8 // num_ranks
        expected = Int8Linear(own_weight, bias, parts)(own_x, torch.float32)
        device = gpu.torch_device
        layer = Int8Linear(own_weight.contiguous().to(device), bias.to(device), parts)
        found = layer(own_x.contiguous().to(device), torch.float32).cpu()
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama", "mixtral", "gpt2"])
def test_tokens_are_the_cpus(gpu: CudaDevice, tmp_path: Path, family: str, method: str) -> None:
    save_model(tmp_path, CONFIGS[family](**({} if family == "gpt2" else WIDE)))
    options: dict[str, Any] = {"dtype": "float32", "num_blocks": 40, "quantization": method}
    expected = Driver(load_runner(tmp_path, **options)).generate(PROMPTS, 4)
    # Invariant: K is cut, and so are groups, as on a CPU.
    runner = load_runner(tmp_path, **options, device=gpu, max_num_seqs=4, invariant=True)
    assert Driver(runner).generate(PROMPTS, 4, ahead=True) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_invariant_ranks_give_the_bits_of_one(
    gpu: CudaDevice, tmp_path: Path, family: str, method: str
) -> None:
    save_model(tmp_path, CONFIGS[family](**WIDE))

    def logits(parallel: ParallelGroup) -> torch.Tensor:
        runner = load_runner(
            tmp_path,
            dtype="bfloat16",
            device=gpu,
            num_blocks=40,
            max_num_seqs=4,
            enforce_eager=True,
            invariant=True,
            parallel=parallel,
            quantization=method,
        )
        driver = Driver(runner)
        driver.generate(PROMPTS, 2)
        return driver.logits[2].cpu()

    def rank_logits(parallel: ParallelGroup) -> torch.Tensor:
        with thread_of(gpu):
            return logits(parallel)

    alone = logits(ParallelGroup())
    num_ranks = 4 if method == "w4" else 2
    assert all(torch.equal(each, alone) for each in run_ranks(num_ranks, rank_logits))


def experts_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models built from here on compute each expert by a layer of its own."""
    monkeypatch.setattr(moe, "have_experts_kernels", lambda dtype: False)


@pytest.mark.parametrize("method", ["w8", "w4"])
@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_captured_and_give_the_tokens_of_their_own_layers(
    gpu: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, method: str
) -> None:
    """Tokens alone: where torch routes, the last bit of a score may be another."""
    save_model(tmp_path, CONFIGS[family](**WIDE, **EXPERTS[family]))

    def run(*, is_captured: bool) -> list[list[int]]:
        options: dict[str, Any] = {"dtype": "bfloat16", "quantization": method, "invariant": True}
        runner = load_runner(tmp_path, **options, num_blocks=40, device=gpu, max_num_seqs=4)
        assert (inputs_of(runner).graphs is not None) is is_captured
        driver = Driver(runner)
        tokens = driver.generate(PROMPTS, 4, ahead=True)
        assert_replayed(driver, 3 if is_captured else 0)
        return tokens

    tokens = run(is_captured=True)
    experts_one_by_one(monkeypatch)
    assert tokens == run(is_captured=False)


@pytest.mark.parametrize(
    ("family", "name", "limit"),
    [
        ("qwen3_moe", "awq", 0.45),
        ("qwen3_moe", "gptq of 8 bits", 0.7),
        ("qwen3_moe", "gptq with desc_act", 1),
        ("qwen3_moe", "fp8 in blocks", 0.7),
        ("qwen3_moe", "mixed", 0.9),
        ("deepseek_v3", "fp8 in blocks", 0.7),
    ],
)
def test_stored_experts_have_the_bits_of_the_dequantised_ones(
    gpu: CudaDevice, tmp_path: Path, family: str, name: str, limit: float
) -> None:
    """Kept as they are where all of a layer have integers, else dequantised."""
    sizes = {**WIDE, **EXPERTS[family]}
    form = FORMATS["awq" if name == "mixed" else name]
    stored, plain = save_both(tmp_path, form, CONFIGS[family], **sizes)
    if name == "mixed":
        in_format, whole = (load_file(each / "model.safetensors") for each in (stored, plain))
        for layer in [each for each in whole if "experts.1." in each]:
            for suffix in ("qweight", "qzeros", "scales"):
                del in_format[layer.removesuffix("weight") + suffix]
            in_format[layer] = whole[layer]
        save_file(in_format, stored / "model.safetensors")
    options: dict[str, Any] = {"dtype": "bfloat16", "device": gpu, "invariant": True}
    expected = stored_logits(stored, **options)
    assert torch.equal(stored_logits(stored, quantization="stored", **options), expected)
    kept = weight_bytes(stored, gpu, dtype="bfloat16", quantization="stored")
    share = kept / weight_bytes(stored, gpu, dtype="bfloat16")
    assert share < limit or limit == share == 1


class DequantisedLinear:
    """What a layer of 8 or 4 bits stands for."""

    def __init__(
        self,
        weight: GroupedWeight,
        bias: torch.Tensor | None,
        total_features: int,
        *_: object,
        dtype: torch.dtype,
    ) -> None:
        self._weight, self._bias = weight.dequantised().to(dtype), bias
        self._total_features = total_features
        self.weight_bytes = self._weight.nbytes

    def __call__(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        return fixed_tile_linear(x, self._weight, self._bias, self._total_features, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["w8", "w4"])
def test_tokens_and_logits_are_those_of_the_dequantised_weights(
    gpu: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, dtype: str
) -> None:
    save_model(tmp_path, CONFIGS["llama"](**WIDE))

    def run() -> tuple[Any, torch.Tensor]:
        options: dict[str, Any] = {"dtype": dtype, "num_blocks": 40, "quantization": method}
        driver = Driver(load_runner(tmp_path, **options, device=gpu, max_num_seqs=4))
        return driver.generate(PROMPTS, 4), driver.logits[2].cpu()

    tokens, logits = run()
    expected = partial(DequantisedLinear, dtype=getattr(torch, dtype))
    layer = "DeviceGroupedLinear" if dtype == "float32" else "WeightOnlyLinear"
    monkeypatch.setattr(quantization, layer, expected)
    expected_tokens, expected_logits = run()
    assert tokens == expected_tokens
    assert torch.equal(logits, expected_logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["awq", "gptq of 8 bits", "compressed-tensors of 4 bits", *STORED_FLOAT8]
)
def test_stored_weights_give_the_logits_of_the_dequantised_ones(
    gpu: CudaDevice, tmp_path: Path, name: str, dtype: str
) -> None:
    stored, plain = save_both(tmp_path, FORMATS[name], **WIDE_PARTS)
    options: dict[str, Any] = {"dtype": dtype, "device": gpu, "invariant": True}
    expected = stored_logits(plain, **options)
    assert torch.equal(stored_logits(stored, **options), expected)
    assert torch.equal(stored_logits(stored, quantization="stored", **options), expected)


@pytest.mark.parametrize("name", ["compressed-tensors of float8", "fp8 in blocks"])
def test_invariant_ranks_give_the_bits_of_one_of_stored_float8(
    gpu: CudaDevice, tmp_path: Path, name: str
) -> None:
    stored, _ = save_both(tmp_path, FORMATS[name], **WIDE_PARTS)

    def logits(parallel: ParallelGroup) -> torch.Tensor:
        with thread_of(gpu):
            return stored_logits(
                stored,
                dtype="bfloat16",
                device=gpu,
                invariant=True,
                enforce_eager=True,
                quantization="stored",
                parallel=parallel,
            )

    alone = logits(ParallelGroup())
    assert all(torch.equal(each, alone) for each in run_ranks(2, logits))


@pytest.mark.parametrize("name", STORED_FLOAT8)
def test_stored_float8_takes_a_byte(gpu: CudaDevice, tmp_path: Path, name: str) -> None:
    """On a GPU; embedding and head are whole."""
    stored, _ = save_both(tmp_path, FORMATS[name], **WIDE_PARTS)
    whole = weight_bytes(stored, gpu, dtype="float32")
    assert weight_bytes(stored, gpu, dtype="float32", quantization="stored") < whole * 0.45
    in_16_bits = weight_bytes(stored, gpu, dtype="bfloat16", quantization="stored")
    assert in_16_bits < weight_bytes(stored, gpu, dtype="bfloat16") * 0.75


def test_layers_of_transformers_are_refused(gpu: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path, FALLBACKS["olmo"]())
    with pytest.raises(ModelLoadError, match="quantization: must be none for OlmoForCausalLM"):
        load_runner(tmp_path, device=gpu, quantization="w8a8")
