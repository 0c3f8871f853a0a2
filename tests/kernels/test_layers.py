"""Norms, rotary embedding and activations against float64, and their rows' independence."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.oracle import DTYPES, UNIT_ROUNDOFF, assert_close
from worker_svc import ops

# Float32 arithmetic on the way adds this much, relative to the terms; the output is rounded once.
FLOAT32_NOISE = 2.0**-19
SIZES = [1, 7, 16, 33, 64, 100, 768]

pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def ulps(dtype: torch.dtype, roundings: int = 1) -> float:
    """Roundings to the dtype that a result may show."""
    return roundings + FLOAT32_NOISE / UNIT_ROUNDOFF[dtype]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


# ------------------------------------------------------------------------ norms


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(isa: str, dtype: torch.dtype, size: int) -> None:
    x, weight = random(5, size, dtype=dtype), random(size, dtype=dtype, seed=1)
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, 1e-5)
    assert_close(out, rms(x, weight, 1e-5), dtype, ulps(dtype))
    ops.rms_norm(x, x, weight, 1e-5)
    assert torch.equal(x, out)


def test_rms_norm_of_heads_within_a_projection(isa: str, dtype: torch.dtype) -> None:
    wide, weight = random(6, 5, 24, dtype=dtype), random(24, dtype=dtype, seed=1)
    heads = wide[:, 1:4]
    expected, before = rms(heads, weight, 1e-6), wide.clone()
    ops.rms_norm(heads, heads, weight, 1e-6)
    assert_close(heads, expected, dtype, ulps(dtype))
    assert torch.equal(wide[:, 0], before[:, 0])
    assert torch.equal(wide[:, 4], before[:, 4])


@pytest.mark.parametrize("size", SIZES)
def test_fused_add_rms_norm_is_both_in_turn(isa: str, dtype: torch.dtype, size: int) -> None:
    x, residual = random(5, size, dtype=dtype), random(5, size, dtype=dtype, seed=1)
    weight = random(size, dtype=dtype, seed=2)
    total = x + residual
    normed = torch.empty_like(total)
    ops.rms_norm(normed, total, weight, 1e-5)
    ops.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x, normed)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_layer_norm(isa: str, dtype: torch.dtype, size: int, with_bias: bool) -> None:
    x, weight = random(5, size, dtype=dtype), random(size, dtype=dtype, seed=1)
    bias = random(size, dtype=dtype, seed=2) if with_bias else None
    out = torch.empty_like(x)
    ops.layer_norm(out, x, weight, bias, 1e-5)
    exact = functional.layer_norm(x.double(), (size,), eps=1e-5) * weight.double()
    deviation = x.double().std(-1, correction=0, keepdim=True)
    # Terms: the row is centred, which cancels, before it is scaled.
    terms = x.double().abs().amax(-1, keepdim=True) / (deviation**2 + 1e-5).sqrt()
    noise_share = FLOAT32_NOISE / (UNIT_ROUNDOFF[dtype] * ulps(dtype))
    magnitude = exact.abs() + noise_share * terms * weight.double().abs()
    if bias is not None:
        exact = exact + bias.double()
        magnitude = magnitude + bias.double().abs()
    assert_close(out, exact, dtype, ulps(dtype), magnitude)
    ops.layer_norm(x, x, weight, bias, 1e-5)
    assert torch.equal(x, out)


# ----------------------------------------------------------------------- rotary


def rotate(x: Tensor, positions: Tensor, cache: Tensor, is_neox: bool) -> tuple[Tensor, Tensor]:
    """The result and the sum of its absolute terms, in float64."""
    half = cache.shape[1] // 2
    cos = cache[positions, None, :half].double()
    sin = cache[positions, None, half:].double()
    exact, magnitude = x.double().clone(), x.double().abs()
    first = slice(0, half) if is_neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if is_neox else slice(1, 2 * half, 2)
    a, b = x.double()[..., first], x.double()[..., second]
    exact[..., first], exact[..., second] = a * cos - b * sin, b * cos + a * sin
    magnitude[..., first] = (a * cos).abs() + (b * sin).abs()
    magnitude[..., second] = (b * cos).abs() + (a * sin).abs()
    return exact, magnitude


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("head_size", "rotary_size"), [(8, 8), (16, 8), (24, 24), (80, 32), (128, 128)]
)
def test_rotary_embedding(
    isa: str, dtype: torch.dtype, head_size: int, rotary_size: int, is_neox: bool
) -> None:
    qkv = random(9, 7, head_size, dtype=dtype)
    query, key, value = qkv[:, :4], qkv[:, 4:6], qkv[:, 6].clone()
    angles = torch.rand(50, rotary_size // 2, generator=torch.Generator().manual_seed(1)) * 6
    cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.tensor([0, 3, 49, 7, 7, 1, 20, 48, 30])
    expected = [rotate(x, positions, cache, is_neox) for x in (query, key)]
    ops.rotary_embedding(positions, query, key, cache, is_neox)
    for x, (exact, magnitude) in zip((query, key), expected, strict=True):
        assert_close(x, exact, dtype, ulps(dtype), magnitude)
    assert torch.equal(qkv[:, 6], value)


def test_rotary_position_out_of_range(dtype: torch.dtype) -> None:
    query = random(2, 1, 8, dtype=dtype)
    before = query.clone()
    with pytest.raises(ValueError, match=r"positions\[1\].*10"):
        ops.rotary_embedding(torch.tensor([0, 10]), query, query.clone(), torch.ones(10, 8), True)
    assert torch.equal(query, before)


# ------------------------------------------------------------------ activations

Activation = Callable[[Tensor, Tensor], None]
PLAIN: list[tuple[Activation, Callable[[Tensor], Tensor]]] = [
    (ops.gelu, functional.gelu),
    (ops.gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
    (ops.quick_gelu, lambda x: x * torch.sigmoid(1.702 * x)),
]
GATED: list[tuple[Activation, Callable[[Tensor], Tensor]]] = [
    (ops.silu_and_mul, functional.silu),
    (ops.gelu_and_mul, functional.gelu),
    (ops.gelu_tanh_and_mul, lambda x: functional.gelu(x, approximate="tanh")),
]


def named(pair: object) -> str:
    return getattr(pair, "__name__", "")


@pytest.mark.parametrize(("kernel", "exact"), PLAIN, ids=named)
@pytest.mark.parametrize("size", SIZES)
def test_activation(
    isa: str,
    dtype: torch.dtype,
    size: int,
    kernel: Activation,
    exact: Callable[[Tensor], Tensor],
) -> None:
    x = random(4, size, dtype=dtype) * 2
    out = torch.empty_like(x)
    kernel(out, x)
    # 1 + erf and 1 + tanh cancel for negative x: the error is relative to x.
    magnitude = exact(x.double()).abs() + FLOAT32_NOISE * x.double().abs()
    assert_close(out, exact(x.double()), dtype, ulps(dtype), magnitude)
    kernel(x, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize(("kernel", "exact"), GATED, ids=named)
@pytest.mark.parametrize("size", SIZES)
def test_gated_activation(
    isa: str,
    dtype: torch.dtype,
    size: int,
    kernel: Activation,
    exact: Callable[[Tensor], Tensor],
) -> None:
    x = random(4, 2 * size, dtype=dtype) * 2
    out = torch.empty(4, size, dtype=dtype)
    kernel(out, x)
    gate, up = x.double().split(size, -1)
    # The gate is rounded to the dtype before it is multiplied, as models do.
    magnitude = (exact(gate).abs() + FLOAT32_NOISE * gate.abs()) * up.abs()
    assert_close(out, exact(gate) * up, dtype, ulps(dtype, 2), magnitude)


@pytest.mark.parametrize(("kernel", "exact"), PLAIN, ids=named)
def test_activation_of_extremes(
    isa: str, dtype: torch.dtype, kernel: Activation, exact: Callable[[Tensor], Tensor]
) -> None:
    x = torch.tensor([[0.0, -0.0, 40.0, -40.0, 3e4, -3e4, torch.inf, torch.nan]], dtype=dtype)
    out = torch.empty_like(x)
    kernel(out, x)
    expected = torch.tensor([0, 0, 40.0, 0, 3e4, 0, torch.inf]).to(dtype)
    torch.testing.assert_close(out[0, :7], expected, rtol=0, atol=1e-27)
    assert out[0, 7].isnan()


# ------------------------------------------------------------------- invariance


def test_rows_do_not_depend_on_their_company(isa: str, dtype: torch.dtype) -> None:
    size = 200
    x, weight = random(37, size, dtype=dtype), random(size, dtype=dtype, seed=1)
    residual = random(37, size, dtype=dtype, seed=2)

    def outputs(rows: slice) -> list[Tensor]:
        part, rest = x[rows], residual[rows].clone()
        normed, centred = torch.empty_like(part), torch.empty_like(part)
        ops.rms_norm(normed, part, weight, 1e-5)
        ops.layer_norm(centred, part, weight, weight, 1e-5)
        fused = part.clone()
        ops.fused_add_rms_norm(fused, rest, weight, 1e-5)
        gated = part.new_empty(len(part), size // 2)
        ops.silu_and_mul(gated, part)
        activated = torch.empty_like(part)
        ops.gelu(activated, part)
        return [normed, centred, fused, rest, gated, activated]

    together = outputs(slice(0, 37))
    for row in (0, 11, 36):
        for alone, all_rows in zip(outputs(slice(row, row + 1)), together, strict=True):
            assert torch.equal(alone[0], all_rows[row])
