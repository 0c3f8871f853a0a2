"""Layers whose own type breaks the invariance rule multiply in float32, on every rank alike."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fakes.products_without_bf16 import SHAPE, THREAD_COUNTS
from worker_svc.layers.device_linear import invariance, make_linear
from worker_svc.layers.float32_products import LinearShape, agree_on_float32, needs_float32
from worker_svc.layers.invariant_linear import InvariantLinear
from worker_svc.parallel.group import ParallelGroup

ROOT = Path(__file__).resolve().parents[3]


def run_limited_to(isa: str, num_threads: int) -> "subprocess.CompletedProcess[str]":
    """Check products in a process in which oneDNN knows of no later instructions."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fakes.products_without_bf16", str(num_threads)],
        cwd=ROOT,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("num_threads", THREAD_COUNTS)
def test_without_bf16_instructions_shapes_that_break_the_rule_are_found_and_keep_it(
    num_threads: int,
) -> None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("oneDNN cuts the sums of bf16 products with AVX-512 alone; not on this CPU")
    result = run_limited_to("AVX512_CORE", num_threads)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without float32: broken" in result.stdout
    assert f"in float32: {SHAPE}" in result.stdout
    assert "violations: 0" in result.stdout


def test_where_nothing_breaks_the_rule_nothing_changes() -> None:
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs AVX2, for which oneDNN's bf16 products keep the rule")
    result = run_limited_to("AVX2", THREAD_COUNTS[-1])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without float32: kept" in result.stdout
    assert "in float32: none" in result.stdout
    assert "violations: 0" in result.stdout


def test_float32_stays_as_it_is_and_trying_leaves_the_threads() -> None:
    num_threads = torch.get_num_threads()
    assert not needs_float32(LinearShape(4096, 256, True, torch.float32))
    needs_float32(LinearShape(96, 24, True, torch.bfloat16))
    assert torch.get_num_threads() == num_threads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 33])
def test_product_in_float32_is_exact_but_for_one_rounding(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 40).to(dtype), torch.randn(24).to(dtype)
    x = torch.randn(rows, 40).to(dtype)
    linear = InvariantLinear(weight, bias)
    for _ in range(2):  # the second time nothing is left to do
        linear.multiply_in_float32()
    result = linear(x)
    exact = x.double() @ weight.double().t() + bias.double()
    assert result.shape == (rows, 24)
    assert torch.equal(result, exact.float().to(dtype)) or torch.allclose(
        result.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=1e-5
    )


def test_a_shape_that_breaks_the_rule_is_made_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def needs(shape: LinearShape) -> bool:
        asked.append(shape)
        return shape.in_features == 16

    monkeypatch.setattr("worker_svc.layers.device_linear.needs_float32", needs)
    with invariance(False) as built:
        make_linear(torch.zeros(8, 16).bfloat16(), None, total_features=32)
        make_linear(torch.zeros(8, 24).bfloat16(), None)
    assert [linear.is_float32 for linear in built] == [True, False]
    assert asked == [
        LinearShape(16, 32, True, torch.bfloat16),
        LinearShape(24, 8, False, torch.bfloat16),
    ]


class OtherRank:
    """The communicator of rank 0 beside a rank on a machine that decided otherwise."""

    def __init__(self, its_own: list[int]) -> None:
        self._its_own = torch.tensor(its_own, dtype=torch.uint8)

    def all_gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part, self._its_own]

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        raise AssertionError("ranks must agree by all_gather alone")

    def broadcast(self, values: torch.Tensor) -> None:
        raise AssertionError("ranks must agree by all_gather alone")


def test_ranks_agree_on_float32_where_any_needs_it() -> None:
    linears = [InvariantLinear(torch.ones(4, 8).bfloat16(), None) for _ in range(3)]
    linears[2].multiply_in_float32()
    agree_on_float32(linears, ParallelGroup(0, 2, OtherRank([1, 0, 0])))
    assert [linear.is_float32 for linear in linears] == [True, False, True]
