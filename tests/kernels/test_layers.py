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


def ulps(dtype: torch.dtype) -> float:
    """Roundings to the dtype that a result may show: one, and what float32 adds."""
    return 1 + FLOAT32_NOISE / UNIT_ROUNDOFF[dtype]


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
    gate, up = x.double()[:, :size], x.double()[:, size:]
    magnitude = (exact(gate).abs() + FLOAT32_NOISE * gate.abs()) * up.abs()
    assert_close(out, exact(gate) * up, dtype, ulps(dtype), magnitude)


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


def outputs(x: Tensor, residual: Tensor, positions: Tensor) -> list[Tensor]:
    """What every operation makes of rows x [M, H, N] and a residual stream like it."""
    weight = random(x.shape[-1], dtype=x.dtype, seed=1)
    normed, centred = torch.empty_like(x), torch.empty_like(x)
    ops.rms_norm(normed, x, weight, 1e-5)
    ops.layer_norm(centred, x, weight, weight, 1e-5)
    fused, total = x.clone(), residual.clone()
    ops.fused_add_rms_norm(fused, total, weight, 1e-5)
    rotated = [x.clone() for _ in range(4)]
    angles = torch.arange(64)[:, None] * torch.linspace(0.01, 1, 18)
    cache = torch.cat([angles.cos(), angles.sin()], 1)
    ops.rotary_embedding(positions, rotated[0], rotated[1], cache, True)
    ops.rotary_embedding(positions, rotated[2], rotated[3], cache, False)
    activated = []
    for kernel, _ in PLAIN:
        activated.append(torch.empty_like(x[:, 0]))
        kernel(activated[-1], x[:, 0])
    for kernel, _ in GATED:
        activated.append(x.new_empty(len(x), x.shape[-1] // 2))
        kernel(activated[-1], x[:, 1])
    return [normed, centred, fused, total, *rotated, *activated]


def test_rows_do_not_depend_on_their_company(
    isa: str, dtype: torch.dtype, thread_counts: tuple[int, ...]
) -> None:
    """Enough rows for several threads; each row alone, elsewhere, and as a view of wider rows."""
    rows, heads, size = 150, 3, 74
    x = random(rows, heads, size, dtype=dtype)
    residual = random(rows, heads, size, dtype=dtype, seed=3)
    positions = torch.arange(rows) % 64
    together = outputs(x, residual, positions)
    for num_threads in thread_counts:
        ops.set_num_threads(num_threads)
        for again, first in zip(outputs(x, residual, positions), together, strict=True):
            assert torch.equal(again, first)
    backwards = outputs(x.flip(0), residual.flip(0), positions.flip(0))
    wide = functional.pad(x, (5, 3, 2, 1))
    view = wide[:, 2:-1, 5:-3]
    for other, first in zip(backwards, together, strict=True):
        assert torch.equal(other.flip(0), first)
    for other, first in zip(outputs(view, residual, positions), together, strict=True):
        assert torch.equal(other, first)
    for row in (0, 76, rows - 1):
        part = slice(row, row + 1)
        alone = outputs(x[part], residual[part], positions[part])
        for other, first in zip(alone, together, strict=True):
            assert torch.equal(other[0], first[row])


@pytest.mark.parametrize("kernel", [pair[0] for pair in PLAIN + GATED] + ["rms", "add", "layer"])
def test_nothing_beside_a_view_is_written(
    isa: str, dtype: torch.dtype, kernel: Activation | str
) -> None:
    wide = random(7, 30, dtype=dtype)
    view, before = wide[1:6, 4:23], wide.clone()
    x, weight = random(5, 19, dtype=dtype, seed=1), random(19, dtype=dtype, seed=2)
    if kernel == "rms":
        ops.rms_norm(view, x, weight, 1e-5)
    elif kernel == "layer":
        ops.layer_norm(view, x, weight, None, 1e-5)
    elif kernel == "add":
        ops.fused_add_rms_norm(x, view, weight, 1e-5)
    else:
        assert callable(kernel)
        gated = kernel in [pair[0] for pair in GATED]
        kernel(view, torch.cat([x, x], 1) if gated else x)
    assert not torch.equal(wide[1:6, 4:23], before[1:6, 4:23])
    wide[1:6, 4:23] = before[1:6, 4:23]
    assert torch.equal(wide, before)


def test_bad_arguments(dtype: torch.dtype) -> None:
    x, weight = random(4, 6, dtype=dtype), random(6, dtype=dtype)
    for out, words in (
        (x[:3], "out.*3, 6"),
        (x[:, :5], "out.*4, 5"),
        (x.double(), "out.*float64"),
        (x.repeat(1, 2)[:, ::2], "out.*stride"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            ops.rms_norm(out, x, weight, 1e-5)
    for wrong, words in ((weight[:5], "weight.*5"), (weight.double(), "weight.*float64")):
        with pytest.raises(ValueError, match=f"^{words}"):
            ops.fused_add_rms_norm(x.clone(), x.clone(), wrong, 1e-5)
    with pytest.raises(ValueError, match=r"^eps.*-1"):
        ops.layer_norm(x.clone(), x, weight, None, -1.0)
    with pytest.raises(ValueError, match=r"^bias.*5"):
        ops.layer_norm(x.clone(), x, weight, weight[:5], 1e-5)
    with pytest.raises(ValueError, match=r"^x: must be \[M, 2N\] = \[4, 12\].*4, 6"):
        ops.silu_and_mul(x.clone(), x)
