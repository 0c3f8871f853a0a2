"""No operation reaches past its operands.

Every operand fills its allocation to the last byte, and every operation uses the last row, block
and slot, so that a sanitized build sees a read or write of one element too many. The same call on
operands that lie amid NaN (or, of indices, absurd numbers) must give the same bits and leave its
surroundings as they were, which shows most of that without a sanitizer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.kernels.cache_formats import quantised_cache
from tests.kernels.oracle import DTYPES
from worker_svc import ops

MARGIN = 64
HEAD_SIZES = [8, 24, 80, 128]
ROW_SIZES = [1, 7, 16, 33, 100]
# (M, K, N): each tile shape, on the emulator's small device; one section and two; odd sizes.
LINEAR_SIZES = [(1, 8, 8), (3, 7, 5), (10, 264, 72), (20, 40, 70), (65, 300, 9), (130, 72, 200)]

Place = Callable[[Tensor], Tensor]


def tight(values: Tensor) -> Tensor:
    """The same values in an allocation of their own."""
    assert values.untyped_storage().nbytes() == values.numel() * values.element_size()
    return values.clone()


@dataclass
class Surroundings:
    """Places operands in the middle of wider buffers."""

    buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def place(self, values: Tensor) -> Tensor:
        """The same values between margins of NaN, or of a number that indexes nothing."""
        is_float8 = values.dtype == torch.float8_e4m3fn
        # A row of int8 has NaN for its scale.
        filler = 2**30 if values.dtype in (torch.int32, torch.int64) else -1
        if values.is_floating_point():
            filler = torch.nan
        shape = (values.numel() + 2 * MARGIN,)
        buffer = torch.full(shape, filler, dtype=torch.float32 if is_float8 else values.dtype)
        buffer = buffer.to(values.dtype)
        self.buffers.append((buffer, buffer.clone()))
        operand = buffer[MARGIN:-MARGIN].view(values.shape)
        operand.copy_(values)
        return operand

    def assert_untouched(self) -> None:
        """Every margin is as it was."""
        for buffer, before in self.buffers:
            for margin in (slice(0, MARGIN), slice(-MARGIN, None)):
                assert torch.equal(bits(buffer[margin]), bits(before[margin]))


def bits(tensor: Tensor) -> Tensor:
    """NaN equals itself as an integer."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


def check(run: Callable[[Place], list[Tensor]]) -> None:
    """Run on exact allocations and amid NaN; results are the operands that `run` returns."""
    expected = [result.clone() for result in run(tight)]
    surroundings = Surroundings()
    for result, wanted in zip(run(surroundings.place), expected, strict=True):
        assert not wanted.is_floating_point() or wanted.float().isfinite().all()
        assert torch.equal(bits(result), bits(wanted))
    surroundings.assert_untouched()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_dtype
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_cache_moves(isa: str, dtype: torch.dtype, head_size: int) -> None:
    def run(place: Place) -> list[Tensor]:
        rows = [place(random(4, 2, head_size, dtype=dtype, seed=i)) for i in range(2)]
        caches = [place(random(3, 2, 8, head_size, dtype=dtype, seed=2 + i)) for i in range(2)]
        slots = place(torch.tensor([0, 7, 16, 23]))  # 23 is the last slot of the last block
        ops.reshape_and_cache(rows[0], rows[1], caches[0], caches[1], slots)
        back = [place(torch.zeros_like(row)) for row in rows]
        ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots)
        ops.copy_blocks(caches[:1], caches[1:], place(torch.tensor([[2, 0], [0, 2]])))
        other = place(torch.zeros_like(caches[0]))
        ops.swap_blocks(caches[0], other, place(torch.tensor([[2, 2], [0, 0]])))
        return [*caches, *back, other]

    check(run)


@every_dtype
@pytest.mark.pairwise
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("group", [1, 3, 8])
def test_paged_attention(isa: str, dtype: torch.dtype, head_size: int, group: int) -> None:
    """A decode and a chunk; the longest sequence fills the last block of the table and cache."""

    def run(place: Place) -> list[Tensor]:
        query = place(random(6, 2 * group, head_size, dtype=dtype))
        out = place(torch.zeros_like(query))
        caches = [place(random(6, 2, 8, head_size, dtype=dtype, seed=1 + i)) for i in range(2)]
        ops.paged_attention(
            out,
            query,
            caches[0],
            caches[1],
            place(torch.tensor([[1, 4, 2], [3, 0, 5]]).int()),
            place(torch.tensor([19, 24]).int()),
            place(torch.tensor([0, 1, 6]).int()),
            head_size**-0.5,
            alibi_slopes=place(torch.linspace(0.1, 0.9, 2 * group)),
            sinks=place(torch.linspace(-1.0, 3.0, 2 * group)),
        )
        return [out]

    check(run)


@every_dtype
@pytest.mark.parametrize("head_size", [64, 128])
def test_prompts(isa: str, dtype: torch.dtype, head_size: int) -> None:
    """A prompt and a chunk of as many columns as a GPU has a kernel of its own for."""

    def run(place: Place) -> list[Tensor]:
        query = place(random(50, 8, head_size, dtype=dtype))
        out = place(torch.zeros_like(query))
        caches = [place(random(6, 2, 16, head_size, dtype=dtype, seed=1 + i)) for i in range(2)]
        ops.paged_attention(
            out,
            query,
            *caches,
            place(torch.tensor([[1, 4, 2], [3, 0, 5]]).int()),
            place(torch.tensor([33, 48]).int()),
            place(torch.tensor([0, 33, 50]).int()),
            head_size**-0.5,
        )
        return [out]

    check(run)


@every_dtype
@pytest.mark.parametrize("heads", [3, 16, 32])
def test_latent_attention(isa: str, dtype: torch.dtype, heads: int) -> None:
    """A decode and a chunk over rows whose first 512 elements are the values."""

    def run(place: Place) -> list[Tensor]:
        query = place(random(6, heads, 576, dtype=dtype))
        out = place(torch.zeros(6, heads, 512, dtype=dtype))
        rows = place(random(6, 1, 16, 576, dtype=dtype, seed=1))
        ops.paged_attention(
            out,
            query,
            rows,
            rows[..., :512],
            place(torch.tensor([[1, 4, 2], [3, 0, 5]]).int()),
            place(torch.tensor([41, 48]).int()),
            place(torch.tensor([0, 1, 6]).int()),
            0.06,
        )
        return [out]

    check(run)


@every_dtype
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_quantised_caches(isa: str, dtype: torch.dtype, head_size: int) -> None:
    cache = quantised_cache(isa)

    def run(place: Place) -> list[Tensor]:
        rows = [place(random(4, 2, head_size, dtype=dtype, seed=i)) for i in range(2)]
        filled = cache.encode(random(6, 8, 2, head_size, seed=2)).transpose(1, 2).contiguous()
        caches = [place(filled) for _ in range(2)]
        slots = place(torch.tensor([0, 7, 40, 47]))  # 47 is the last slot of the last block
        options = {name: place(option) for name, option in cache.options(2).items()}
        ops.reshape_and_cache(*rows, *caches, slots, **options)
        back = [place(torch.zeros_like(row)) for row in rows]
        ops.gather_cached_kv(*back, *caches, slots, **options)
        query = place(random(6, 6, head_size, dtype=dtype))
        out = place(torch.zeros_like(query))
        ops.paged_attention(
            out,
            query,
            *caches,
            place(torch.tensor([[1, 4, 2], [3, 0, 5]]).int()),
            place(torch.tensor([19, 24]).int()),
            place(torch.tensor([0, 1, 6]).int()),
            head_size**-0.5,
            **options,
        )
        key, value = (place(random(4, 2, head_size, dtype=dtype, seed=5 + i)) for i in range(2))
        positions = place(torch.tensor([0, 2, 4, 4]))
        cos_sin_cache = place(random(5, head_size, seed=9))
        ops.rotary_and_cache(
            positions, query[:4], key, value, cos_sin_cache, True, *caches, slots, **options
        )
        return [*caches, *back, out]

    check(run)


@every_dtype
@pytest.mark.parametrize("size", ROW_SIZES)
def test_norms(isa: str, dtype: torch.dtype, size: int) -> None:
    def run(place: Place) -> list[Tensor]:
        x, residual = (place(random(3, size, dtype=dtype, seed=i)) for i in range(2))
        weight, bias = (place(random(size, dtype=dtype, seed=2 + i)) for i in range(2))
        outs = [place(torch.zeros_like(x)) for _ in range(3)]
        ops.rms_norm(outs[0], x, weight, 1e-5)
        ops.layer_norm(outs[1], x, weight, bias, 1e-5)
        ops.layer_norm(outs[2], x, weight, None, 1e-5)
        ops.fused_add_rms_norm(x, residual, weight, 1e-5)
        return [*outs, x, residual]

    check(run)


@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(8, 8), (24, 24), (80, 32), (128, 128)])
def test_rotary_embedding(
    isa: str, dtype: torch.dtype, head_size: int, rotary_size: int, is_neox: bool
) -> None:
    def run(place: Place) -> list[Tensor]:
        query = place(random(3, 2, head_size, dtype=dtype))
        key = place(random(3, 1, head_size, dtype=dtype, seed=1))
        cache = place(random(5, rotary_size, seed=2))
        ops.rotary_embedding(place(torch.tensor([0, 2, 4])), query, key, cache, is_neox)
        return [query, key]

    check(run)


@every_dtype
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(8, 8), (24, 24), (80, 32), (128, 128)])
def test_rotary_and_cache(
    isa: str, dtype: torch.dtype, head_size: int, rotary_size: int, is_neox: bool
) -> None:
    def run(place: Place) -> list[Tensor]:
        query = place(random(4, 2, head_size, dtype=dtype))
        key, value = (place(random(4, 1, head_size, dtype=dtype, seed=i)) for i in (1, 2))
        caches = [place(random(3, 1, 8, head_size, dtype=dtype, seed=3 + i)) for i in range(2)]
        positions = place(torch.tensor([0, 2, 4, 4]))
        slots = place(torch.tensor([23, 0, 16]))
        cos_sin_cache = place(random(5, rotary_size, seed=5))
        ops.rotary_and_cache(
            positions, query, key, value, cos_sin_cache, is_neox, caches[0], caches[1], slots
        )
        return [query, *caches]

    check(run)


@every_dtype
@pytest.mark.parametrize("size", ROW_SIZES)
def test_activations(isa: str, dtype: torch.dtype, size: int) -> None:
    def run(place: Place) -> list[Tensor]:
        x, gated = place(random(3, size, dtype=dtype)), place(random(3, 2 * size, dtype=dtype))
        outs = [place(torch.zeros_like(x)) for _ in range(6)]
        for out, plain in zip(outs, (ops.gelu, ops.gelu_tanh, ops.quick_gelu), strict=False):
            plain(out, x)
        for out, gate in zip(
            outs[3:], (ops.silu_and_mul, ops.gelu_and_mul, ops.gelu_tanh_and_mul), strict=True
        ):
            gate(out, gated)
        return outs

    check(run)


@every_dtype
@pytest.mark.parametrize(("rows", "in_features", "out_features"), LINEAR_SIZES)
def test_linear(
    cuda_isa: str, dtype: torch.dtype, rows: int, in_features: int, out_features: int
) -> None:
    def run(place: Place) -> list[Tensor]:
        x = place(random(rows, in_features, dtype=dtype))
        weight = place(random(out_features, in_features, dtype=dtype, seed=1))
        bias = place(random(out_features, dtype=dtype, seed=2))
        out = place(torch.zeros(rows, out_features, dtype=dtype))
        ops.linear(out, x, weight, bias)
        return [out]

    check(run)


@every_dtype
@pytest.mark.parametrize("rows", [1, 17, 70])
def test_head_linear(cuda_isa: str, dtype: torch.dtype, rows: int) -> None:
    def run(place: Place) -> list[Tensor]:
        x, weight = random(rows, 3, 136, dtype=dtype), random(3, 72, 136, dtype=dtype, seed=1)
        out = place(torch.zeros(rows, 3, 72, dtype=dtype))
        ops.head_linear(out, place(x), place(weight))
        return [out]

    check(run)


@pytest.mark.parametrize("vocab_size", [1, 3, 16, 65, 1001])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_sample(isa: str, vocab_size: int, temperature: float) -> None:
    def run(place: Place) -> list[Tensor]:
        rows = 3
        return list(
            ops.sample(
                place(random(rows, vocab_size)),
                place(torch.full((rows,), temperature)),
                place(torch.tensor([0, 2, 0]).int()),
                place(torch.tensor([1.0, 0.9, 0.8])),
                place(torch.tensor([0.0, 0.01, 0.0])),
                place(torch.arange(rows)),
                place(torch.arange(rows).int()),
                place(torch.arange(rows)),
            )
        )

    check(run)


@pytest.mark.parametrize("vocab_size", [1, 3, 16, 65, 1001])
def test_logit_rules(isa: str, vocab_size: int) -> None:
    """The last token of the vocabulary at the end of the last sequence."""

    def run(place: Place) -> list[Tensor]:
        penalised = place(random(2, vocab_size))
        token_ids = torch.zeros(2, 9, dtype=torch.int32)
        token_ids[1, 8] = vocab_size - 1
        ops.apply_penalties(
            penalised,
            place(token_ids),
            place(torch.tensor([9, 4]).int()),
            place(torch.tensor([9, 9]).int()),
            place(torch.tensor([1.5, 0.8])),
            place(torch.tensor([0.3, 0.2])),
            place(torch.tensor([0.1, -0.4])),
        )
        masked = place(random(2, vocab_size, seed=1))
        ops.apply_token_mask(masked, place(torch.full((2, -(-vocab_size // 32)), 0x55555555).int()))
        return [penalised, masked.nan_to_num(neginf=-1.0)]

    check(run)


@pytest.mark.parametrize("vocab_size", [1, 3, 16, 65, 1001])
@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_top_logprobs(isa: str, vocab_size: int, num_top: int) -> None:
    def run(place: Place) -> list[Tensor]:
        token_ids = place(torch.tensor([0, vocab_size // 2, vocab_size - 1]))
        return list(ops.top_logprobs(place(random(3, vocab_size)), token_ids, num_top))

    check(run)
