"""The residual stream adds with the norm that reads it, and the bits are those of plain sums."""

from collections.abc import Callable

import pytest
import torch

from worker_svc.layers.norm import GemmaRMSNorm, LayerNorm, Norm, RMSNorm
from worker_svc.layers.residual import ResidualStream
from worker_svc.loading.weights import Weights

ROWS, SIZE, EPS = 5, 24, 1e-5


class RandomTensors:
    """A checkpoint that holds every tensor asked for."""

    def has(self, name: str) -> bool:
        return True

    def read(self, name: str, shape: tuple[int, ...], part: tuple[range, ...]) -> torch.Tensor:
        return torch.randn(shape)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    dtype: torch.dtype = request.param
    return dtype


@pytest.fixture(params=[RMSNorm, GemmaRMSNorm, LayerNorm])
def norm(request: pytest.FixtureRequest, dtype: torch.dtype) -> Norm:
    make: Callable[[Weights, str, int, float], Norm] = request.param
    return make(Weights(RandomTensors(), dtype, torch.device("cpu")), "norm", SIZE, EPS)


def rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(ROWS, SIZE).to(dtype)


def test_norms_read_the_sum_so_far(norm: Norm, dtype: torch.dtype) -> None:
    x, first, second, third = (rows(dtype) for _ in range(4))
    stream = ResidualStream(x.clone())
    assert torch.equal(stream.normed(norm), norm(x))
    stream.add(first.clone())
    assert torch.equal(stream.normed(norm), norm(x + first))
    assert torch.equal(stream.normed(norm), norm(x + first))
    stream.add(second.clone())
    stream.add(third.clone())
    assert torch.equal(stream.normed(norm), norm(x + first + second + third))
    assert torch.equal(stream.value, x + first + second + third)


def test_a_norm_may_replace_the_stream(norm: Norm, dtype: torch.dtype) -> None:
    x, first, second = (rows(dtype) for _ in range(3))
    stream = ResidualStream(x.clone())
    stream.add(first.clone())
    normed = norm(x + first)
    assert torch.equal(stream.normalize(norm), normed)
    stream.add(second.clone())
    assert torch.equal(stream.value, normed + second)
