"""Linear layers keep the invariance rule, and its check finds layers that do not."""

import pytest
import torch

from worker_svc.invariance import check_linear_invariance, check_split_invariance
from worker_svc.layers.device_linear import make_linear
from worker_svc.layers.packed_linear import PackedLinear
from worker_svc.layers.quantization import quantization

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_do_not_depend_on_their_company(dtype: torch.dtype) -> None:
    assert check_linear_invariance(dtype) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_features_do_not_depend_on_how_many_ranks_share_them(dtype: torch.dtype) -> None:
    assert check_split_invariance(dtype) == []


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("method", ["none", "w8a8", "w8"])
def test_layers_give_the_dtype_that_they_were_asked_for(method: str, is_shared: bool) -> None:
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(16, 64).bfloat16()
    with quantization(method):
        layers = [
            make_linear(weight, None, is_shared=is_shared, dtype=dtype)
            for dtype in (None, torch.float32)
        ]
    rounded, exact = (layer(x) for layer in layers)
    assert exact.dtype == torch.float32
    assert torch.equal(rounded, exact.bfloat16())
    assert rounded.dtype == torch.bfloat16


def test_check_of_ranks_reports_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = PackedLinear.__call__

    def depends_on_width(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        return exact(self, x) + (1e-6 if self.out_features == 4 else 0.0)

    monkeypatch.setattr(PackedLinear, "__call__", depends_on_width)
    [violation] = check_split_invariance(torch.float32, [(8, 16)], [5])
    assert (violation.num_ranks, violation.num_rows) == (4, 5)


def test_check_reports_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = PackedLinear.__call__

    def depends_on_company(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        return exact(self, x) + (1e-6 if x.shape[0] == 3 else 0.0)

    monkeypatch.setattr(PackedLinear, "__call__", depends_on_company)
    [violation] = check_linear_invariance(torch.float32, [(8, 16)], [1, 2, 3, 4])
    assert (violation.dtype, violation.in_features, violation.num_rows) == ("float32", 8, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 33])
def test_result_is_the_product(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 40).to(dtype), torch.randn(24).to(dtype)
    x = torch.randn(rows, 40).to(dtype)
    exact = x.double() @ weight.double().t() + bias.double()
    result = PackedLinear(weight, bias)(x)
    assert result.shape == (rows, 24)
    assert result.dtype == dtype
    assert torch.allclose(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
