"""A model whose latent rows have DeepSeek's size, on a GPU: tensor cores attend to them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from quire.contract.errors import ModelLoadError
from tests.emu.conftest import needs_float8_caches
from tests.factories import deepseek_v3_config, save_model
from tests.models.driver import Driver, load_runner
from worker_svc import ops
from worker_svc.device.cuda import CudaDevice
from worker_svc.steps.runner import ModelRunner

# Rows of 576 elements, and heads that are small for the sake of the emulator.
SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 2}
TEXT = [(7 * i) % 101 + 5 for i in range(60)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path, deepseek_v3_config(**SIZES))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What steps were planned with: None where the plain kernel attends."""
    made = []
    plan_attention = ops.plan_attention

    def plan(*args: Any, **options: Any) -> Any:
        made.append(plan_attention(*args, **options))
        return made[-1]

    monkeypatch.setattr(ops, "plan_attention", plan)
    return made


def load(model: Path, gpu: CudaDevice | None, **options: Any) -> ModelRunner:
    return load_runner(
        model, dtype="bfloat16", device=gpu, num_blocks=40, max_num_seqs=4, **options
    )


def test_a_cache_of_float8_is_refused(gpu: CudaDevice, model: Path) -> None:
    needs_float8_caches(gpu)
    words = (
        "kv_cache_dtype: must be auto for DeepseekV3ForCausalLM, whose values are part of its "
        "cached keys, got 'fp8'"
    )
    with pytest.raises(ModelLoadError, match=words):
        load(model, gpu, kv_cache_dtype="fp8")


def test_logits_are_near_the_cpus(gpu: CudaDevice, model: Path, plans: list[Any]) -> None:
    found = []
    for device in (None, gpu):
        driver = Driver(load(model, device))
        driver.add(0, TEXT)
        driver.step()
        found.append(driver.logits[0].cpu())
    assert plans[-1] is not None
    error = (found[0] - found[1]).square().mean().sqrt() / found[0].square().mean().sqrt()
    assert error < 0.03


def test_graphs_and_single_kernels_give_the_same_bits(
    gpu: CudaDevice, model: Path, plans: list[Any]
) -> None:
    logits = []
    for eager in (True, False):
        driver = Driver(load(model, gpu, enforce_eager=eager, invariant=True))
        driver.generate([TEXT, [9] * 15, [4]], 3)
        logits.append({each: rows.cpu() for each, rows in driver.logits.items()})
    assert plans
    assert all(plan is not None for plan in plans)
    assert logits[0].keys() == logits[1].keys() == {0, 1, 2}
    assert all(torch.equal(logits[0][i], logits[1][i]) for i in logits[0])


def test_a_tokens_bits_are_its_own(gpu: CudaDevice, model: Path) -> None:
    runner = load(model, gpu, invariant=True)

    def last_logits(*chunks: int, company: int = 0) -> torch.Tensor:
        """Logits after the text, computed in chunks, beside so many others."""
        driver = Driver(runner)
        driver.add(0, TEXT)
        for index in range(company):
            driver.add(1 + index, TEXT[: 9 * index + 2])
        for chunk in chunks:
            driver.step({0: chunk, **(dict.fromkeys(range(1, company + 1), 1))})
        runner.forget_sequences()
        return driver.logits[0].cpu()

    alone = last_logits(60)
    for chunks, company in (((59, 1), 0), ((30, 13, 17), 0), ((60,), 3), ((58, 1, 1), 2)):
        assert torch.equal(last_logits(*chunks, company=company), alone), (chunks, company)
