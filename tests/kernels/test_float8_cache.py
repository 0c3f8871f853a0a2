"""Caches of e4m3 against torch.float8_e4m3fn: every code, every rounding, and what is refused."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.kernels.cache_formats import Float8Cache
from tests.kernels.conftest import EMULATED, forced
from tests.kernels.oracle import DTYPES
from worker_svc import ops

FORMAT = Float8Cache()
KV_HEADS, BLOCK_SIZE, NUM_BLOCKS = 2, 8, 6
BACKENDS = (
    *(EMULATED if "cuda" in ops.available_isas() else ()),
    *(("gpu",) if torch.cuda.is_available() else ()),
)
if not BACKENDS:
    pytest.skip("neither a GPU nor its emulator is here", allow_module_level=True)


@pytest.fixture(params=BACKENDS)
def cuda(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force each kind of backend that serves such caches."""
    yield from forced(request.param)


def new_caches(head_size: int) -> list[Tensor]:
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, head_size)
    return [FORMAT.empty(shape, torch.float32) for _ in range(2)]


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether tensors have the same bits."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_reads_back(cuda: str, dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    cache = codes.view(1, 1, 8, 32)
    back = [torch.zeros(8, 1, 32, dtype=dtype) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], cache, cache, torch.arange(8))
    expected = codes.float().to(dtype)
    for rows in back:
        assert torch.equal(rows.flatten().isnan(), expected.isnan())
        assert torch.equal(rows.flatten().nan_to_num(7.0), expected.nan_to_num(7.0))


def test_every_code_is_attended_to(cuda: str) -> None:
    """The value of a lone token is the result, exactly, wherever it lies in a head."""
    for shift in (0, 1, 5):
        codes = torch.arange(256, dtype=torch.uint8).roll(shift)
        codes[(codes & 0x7F) == 0x7F] = 3  # no NaN
        cache = codes.view(torch.float8_e4m3fn).view(4, 64).repeat_interleave(8, 0)
        cache = cache.view(4, 1, 8, 64).contiguous()
        query = torch.randn(4, 1, 64).bfloat16()
        out = torch.zeros_like(query)
        ops.paged_attention(
            out,
            query,
            cache,
            cache,
            torch.arange(4, dtype=torch.int32)[:, None],
            torch.ones(4, dtype=torch.int32),
            torch.arange(5, dtype=torch.int32),
            0.125,
        )
        assert torch.equal(out.flatten().float(), codes.view(torch.float8_e4m3fn).float())


def test_rounding_is_torchs(cuda: str) -> None:
    """Every code, every tie between two, their neighbours, and what is beyond the largest."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    special = torch.tensor([448.0, 450, 464, 465, 1e9, torch.inf, 2.0**-10, 2.0**-11, 1e-40])
    values = torch.cat([codes, ties, special, torch.rand(1000) * 20])
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    values = torch.cat([values, values.nextafter(up), values.nextafter(down)])
    values = torch.cat([values, -values])
    rows = values[: len(values) // 8 * 8].view(-1, 1, 8).contiguous()
    cache = torch.zeros(-(-len(rows) // 8), 1, 8, 8).to(torch.float8_e4m3fn)
    ops.reshape_and_cache(rows, rows, cache, cache.clone(), torch.arange(len(rows)))
    written = cache.view(torch.uint8).flatten()[: rows.numel()]
    expected = rows.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).flatten()
    assert torch.equal(written, expected)

    nan = torch.full((1, 1, 8), torch.nan)
    ops.reshape_and_cache(nan, nan, cache, cache.clone(), torch.zeros(1, dtype=torch.int64))
    assert cache.view(-1, 8)[0].float().isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [8, 24, 80, 128])
def test_what_is_cached(cuda: str, dtype: torch.dtype, head_size: int) -> None:
    key, value = (4 * torch.randn(20, KV_HEADS, head_size).to(dtype) for _ in range(2))
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:20].clone()
    slots[5] = -1
    caches, expected = new_caches(head_size), new_caches(head_size)
    for token, slot in enumerate(slots.tolist()):
        for is_key, rows, cache in zip((True, False), (key, value), expected, strict=True):
            cached = FORMAT.encode(rows[token], is_key=is_key).view(torch.uint8)
            if slot >= 0:
                place = cache.view(torch.uint8)[slot // BLOCK_SIZE]
                place[:, slot % BLOCK_SIZE] = cached
    options = FORMAT.options(KV_HEADS)
    ops.reshape_and_cache(key, value, caches[0], caches[1], slots, **options)
    assert equal(caches[0], expected[0])
    assert equal(caches[1], expected[1])
    back = [torch.full_like(key, 9.0) for _ in range(2)]
    ops.gather_cached_kv(back[0], back[1], caches[0], caches[1], slots, **options)
    kept = slots >= 0
    for is_key, rows, returned in zip((True, False), (key, value), back, strict=True):
        meant = FORMAT.decode(FORMAT.encode(rows, is_key=is_key), is_key=is_key)
        assert torch.allclose(returned[kept].double(), meant[kept], rtol=2.0**-7, atol=0)
        assert (returned[~kept] == 9.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(64, 64), (80, 32)])
def test_rotary_and_cache_is_both_in_turn(
    cuda: str, dtype: torch.dtype, head_size: int, rotary_size: int, is_neox: bool
) -> None:
    query, key, value = (torch.randn(9, KV_HEADS, head_size).to(dtype) for _ in range(3))
    angles = torch.rand(50, rotary_size // 2) * 6
    cos_sin_cache = torch.cat([angles.cos(), angles.sin()], 1)
    positions = torch.tensor([0, 3, 49, 7, 7, 1, 20, 48, 30])
    slots = torch.tensor([13, 0, 47, -1, 8, 9, 10, 40])
    fused, in_turn = new_caches(head_size), new_caches(head_size)
    own_query, options = query.clone(), FORMAT.options(KV_HEADS)
    ops.rotary_and_cache(
        *(positions, own_query, key, value, cos_sin_cache, is_neox, *fused, slots), **options
    )
    ops.rotary_embedding(positions, query, key, cos_sin_cache, is_neox)
    ops.reshape_and_cache(key[:8], value[:8], *in_turn, slots, **options)
    assert torch.equal(own_query, query)
    assert equal(fused[0], in_turn[0])
    assert equal(fused[1], in_turn[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k_scale": torch.ones(3)}, ("k_scale", "[Hkv]", "3")),
        ({"v_scale": torch.ones(2).double()}, ("v_scale", "float64")),
        ({"v_scale": torch.tensor([1.0, 0.0])}, ("v_scale[1]", "0")),
        ({"k_scale": torch.tensor([torch.inf, 1.0])}, ("k_scale[0]", "inf")),
    ],
)
def test_scales_are_checked(changes: dict[str, Tensor], words: tuple[str, ...]) -> None:
    if "cuda" not in ops.available_isas():
        pytest.skip("what is on a GPU is not looked at")
    rows = torch.randn(3, KV_HEADS, 8)
    for _ in forced("cuda_forward"):
        with pytest.raises(ValueError, match=r"_scale") as caught:
            ops.reshape_and_cache(rows, rows, *new_caches(8), torch.arange(3), **changes)
        for word in words:
            assert word in str(caught.value)
        int8 = torch.zeros(NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, 12, dtype=torch.int8)
        with pytest.raises(ValueError, match=r"key_cache: must be float32.*float8_e4m3fn.*int8"):
            ops.reshape_and_cache(rows, rows, int8, int8, torch.arange(3))
