"""Layers and sampling: every instruction set gives the bits of the scalar one."""

import pytest
import torch
from torch import Tensor

from tests.kernels.cache_formats import PLAIN, Int8Cache
from tests.kernels.oracle import DTYPES
from tests.kernels.same_bits import check, vectors
from worker_svc import ops

SIZES = [1, 7, 8, 15, 16, 33, 63, 64, 65, 100, 127, 768, 1000]
# What rows are multiplied by: ordinary numbers, small ones whose squares and products lie about the
# smallest normal number, denormal ones, large ones whose squares overflow.
SCALES = {"ordinary": 1.0, "small": 2.0**-63, "denormal": 2.0**-127, "large": 2.0**70}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
scales = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)


def random(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers; where float16 cannot hold them they are zero or infinite."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (numbers.double() * scale).to(dtype)


# ------------------------------------------------------------------------ layers


@vectors
@dtypes
@scales
@pytest.mark.parametrize("size", SIZES)
def test_norms(vector_isa: str, dtype: torch.dtype, scale: float, size: int) -> None:
    x, residual, weight, bias = (
        random(5, size, dtype=dtype, seed=1, scale=scale),
        random(5, size, dtype=dtype, seed=2, scale=scale),
        random(size, dtype=dtype, seed=3),
        random(size, dtype=dtype, seed=4),
    )

    def run() -> list[Tensor]:
        outs = [torch.empty_like(x) for _ in range(4)]
        ops.rms_norm(outs[0], x, weight, 1e-6)
        ops.rms_norm(outs[1], x, weight, 0.0)
        ops.layer_norm(outs[2], x, weight, bias, 1e-5)
        ops.layer_norm(outs[3], x, weight, None, 0.0)
        fused = x.clone(), residual.clone()
        ops.fused_add_rms_norm(*fused, weight, 1e-6)
        return [*outs, *fused]

    check(vector_isa, run)


# Every exponent and sign, and what is special.
EVERY_SIZE = torch.cat(
    [
        torch.arange(-(2**31), 2**31, 104729, dtype=torch.int64)
        .to(torch.int32)
        .view(torch.float32),
        torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 0.625, -0.625, -88.0, 89.0]),
    ]
)


@vectors
@dtypes
@pytest.mark.parametrize("numbers", ["every size", "where functions bend"])
def test_activations(vector_isa: str, dtype: torch.dtype, numbers: str) -> None:
    values = EVERY_SIZE if numbers == "every size" else torch.linspace(-30, 30, 40009)
    x = values.to(dtype)[None]
    gated = torch.cat([x, random(*x.shape, dtype=dtype)], 1)
    size = x.shape[1]

    def run() -> list[Tensor]:
        results = []
        for plain in (ops.gelu, ops.gelu_tanh, ops.quick_gelu):
            results.append(torch.empty_like(x))
            plain(results[-1], x)
        for with_gate in (ops.silu_and_mul, ops.gelu_and_mul, ops.gelu_tanh_and_mul):
            results.append(torch.empty_like(x))
            with_gate(results[-1], gated)
        # Where the row ends in the middle of a vector.
        results.append(torch.empty_like(x[:, : size - 3]))
        ops.gelu(results[-1], x[:, : size - 3])
        return results

    check(vector_isa, run)


@vectors
@dtypes
@scales
@pytest.mark.parametrize("is_neox", [False, True])
@pytest.mark.parametrize(
    ("head_size", "rotary_size"), [(8, 8), (24, 6), (80, 32), (96, 90), (128, 128)]
)
def test_rotary_and_cache(
    vector_isa: str,
    dtype: torch.dtype,
    scale: float,
    is_neox: bool,
    head_size: int,
    rotary_size: int,
) -> None:
    tokens = 11
    query = random(tokens, 4, head_size, dtype=dtype, seed=1, scale=scale)
    key = random(tokens, 2, head_size, dtype=dtype, seed=2, scale=scale)
    value = random(tokens, 2, head_size, dtype=dtype, seed=3, scale=scale)
    key[3, 1, 5] = torch.nan
    key[4, 0, 6] = torch.inf
    angles = torch.rand(50, rotary_size // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.arange(tokens) * 4 + 2
    slots = torch.randperm(16, generator=torch.Generator().manual_seed(5))[:tokens]

    def run() -> list[Tensor]:
        rotated = query.clone(), key.clone()
        ops.rotary_embedding(positions, *rotated, cos_sin_cache, is_neox)
        results = list(rotated)
        for cache in (PLAIN, Int8Cache()):
            caches = [cache.empty((2, 2, 8, head_size), dtype) for _ in range(2)]
            own_query, rows = query.clone(), (torch.zeros_like(key), torch.zeros_like(value))
            ops.rotary_and_cache(
                positions, own_query, key, value, cos_sin_cache, is_neox, *caches, slots
            )
            ops.gather_cached_kv(*rows, *caches, slots)
            results += [own_query, *caches, *rows]
        return results

    check(vector_isa, run)


# ------------------------------------------------------------------------ logits


@vectors
def test_sampling(vector_isa: str) -> None:
    rows, vocab_size = 64, 5003
    rng = torch.Generator().manual_seed(7)
    logits = 5 * torch.randn(rows, vocab_size, generator=rng)
    logits[5:9] *= 1e-40
    logits[9, 100:] = -torch.inf
    logits[10, 3] = torch.nan
    temperature = torch.rand(rows, generator=rng) * 2
    temperature[::9] = 0
    top_k = torch.randint(0, 60, (rows,), generator=rng, dtype=torch.int32)
    top_k[::2] = 0
    top_p, min_p = torch.rand(rows, generator=rng), torch.rand(rows, generator=rng) * 0.1
    top_p[::3], min_p[::4] = 1, 0
    seed = torch.randint(-(2**62), 2**62, (rows,), generator=rng)
    sequence_index = torch.arange(rows, dtype=torch.int32)

    def run() -> list[Tensor]:
        results = []
        for position in (0, 77, 2**33):
            positions = torch.full((rows,), position)
            results += ops.sample(
                logits, temperature, top_k, top_p, min_p, seed, sequence_index, positions
            )
        return [*results, *ops.top_logprobs(logits, sequence_index.long(), 20)]

    check(vector_isa, run)


@vectors
def test_rules(vector_isa: str) -> None:
    rng = torch.Generator().manual_seed(8)
    logits = 5 * torch.randn(4, 1001, generator=rng)
    logits[3] *= 1e-40
    token_ids = torch.randint(0, 1001, (4, 300), generator=rng, dtype=torch.int32)
    num_prompt_tokens = torch.tensor([0, 100, 300, 30], dtype=torch.int32)
    num_tokens = torch.tensor([300, 200, 300, 260], dtype=torch.int32)
    penalties = [torch.tensor([1.3, 0.7, 1.0, 1.1]), torch.tensor([0.3, 0.0, 0.5, -1.0])]
    bitmask = torch.randint(-(2**31), 2**31, (4, 32), generator=rng).int()

    def run() -> list[Tensor]:
        changed = logits.clone()
        ops.apply_penalties(
            changed, token_ids, num_prompt_tokens, num_tokens, *penalties, penalties[1]
        )
        masked = changed.clone()
        ops.apply_token_mask(masked, bitmask)
        return [changed, masked]

    check(vector_isa, run)
