"""Decode in one kernel against bias, rotary embedding and attention in turn."""

import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.kernels import oracle
from tests.kernels.oracle import DTYPES
from tests.kernels.paged import History
from tests.kernels.seed_layout import BLOCK_SIZES, HEAD_SIZES, allowed_ulps, filled, put
from tests.machine_code.occupancy import MULTIPROCESSORS
from worker_svc.ops import compiled

HEADS = 4


@dataclass(frozen=True, slots=True)
class Rotation:
    """Of the first `share` of a head; none if that is 0."""

    share: float
    is_neox: bool

    def cos_sin_cache(self, positions: int, head_size: int) -> Tensor | None:
        """Return cosines, then sines, [P, R]; None without rotation."""
        if self.share == 0:
            return None
        rotary_dim = int(self.share * head_size) // 2 * 2
        rng = torch.Generator().manual_seed(9)
        angles = 6 * torch.rand(positions, rotary_dim // 2, generator=rng)
        return torch.cat([angles.cos(), angles.sin()], 1)

    def rotate(self, rows: Tensor, cosines_and_sines: Tensor | None) -> Tensor:
        """Return float32 rows [..., D] rotated, each product rounded as the kernel rounds it."""
        if cosines_and_sines is None:
            return rows
        cosines, sines = cosines_and_sines.chunk(2)
        half, rotary_dim = len(cosines), 2 * len(cosines)
        pairs = (slice(0, half), slice(half, rotary_dim))
        if not self.is_neox:
            pairs = (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
        a, b = rows[..., pairs[0]], rows[..., pairs[1]]
        rotated = rows.clone()
        rotated[..., pairs[0]] = a * cosines - b * sines
        rotated[..., pairs[1]] = b * cosines + a * sines
        return rotated


def bits(tensor: Tensor) -> Tensor:
    """As integers, so that a NaN equals itself."""
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def check(
    dtype: torch.dtype,
    head_size: int,
    block_size: int,
    kv_heads: int,
    rotation: Rotation,
    has_bias: bool,
    *,
    in_threes: bool = False,
) -> None:
    """Decode a batch and compare caches bit by bit, results with the oracle.

    Args:
        dtype: of activations and caches.
        head_size: elements of a head.
        block_size: tokens of a block.
        kv_heads: heads of keys and values.
        rotation: of queries and keys.
        has_bias: whether there is a bias.
        in_threes: whether the projection is [N, 3, H, D].
    """
    # The first token, one that begins a block, one that fills a block, and a long context.
    lengths = (1, block_size + 1, 2 * block_size, 150)
    histories = [
        History.random(length, 1, kv_heads, head_size, dtype, seed)
        for seed, length in enumerate(lengths)
    ]
    caches, tables, last_slots = filled(histories, block_size)
    nothing = torch.full((kv_heads, head_size), torch.nan, dtype=dtype)
    for slot in last_slots:
        put(caches, slot, nothing, nothing)
    expected_caches = caches[0].clone(), caches[1].clone()

    rng = torch.Generator().manual_seed(100)
    num_rows = HEADS + 2 * kv_heads
    qkv = torch.randn(len(lengths), num_rows, head_size, generator=rng).to(dtype)
    bias = torch.randn(num_rows, head_size, generator=rng).to(dtype) if has_bias else None
    cos_sin = rotation.cos_sin_cache(max(lengths), head_size)
    scale = head_size**-0.5
    out = torch.full((len(lengths), HEADS, head_size), torch.nan, dtype=dtype)
    given, given_bias = qkv, bias
    if in_threes:
        given = qkv.view(len(lengths), 3, HEADS, head_size)
        given_bias = None if bias is None else bias.view(3, HEADS, head_size)
    compiled._C.masked_multihead_attention(
        *(out, given, given_bias, cos_sin, rotation.is_neox),
        *(*caches, tables, torch.tensor(lengths, dtype=torch.int32), scale, max(lengths)),
    )

    parts = (HEADS, kv_heads, kv_heads)
    results = []
    for row, history in enumerate(histories):
        rows = qkv[row].float() if bias is None else qkv[row].float() + bias.float()
        query, key, value = rows.split(parts)
        of_position = None if cos_sin is None else cos_sin[lengths[row] - 1]
        query, key = (rotation.rotate(each, of_position).to(dtype) for each in (query, key))
        value = value.to(dtype)
        put(expected_caches, last_slots[row], key, value)
        keys = torch.cat([history.key[:-1], key[None]])
        values = torch.cat([history.value[:-1], value[None]])
        results.append((query, keys, values))
    for cache, expected_cache in zip(caches, expected_caches, strict=True):
        assert torch.equal(bits(cache), bits(expected_cache))
    for actual, (query, keys, values) in zip(out, results, strict=True):
        expected, magnitude = oracle.attention(query[None], keys, values, len(keys) - 1, scale)
        allowed = allowed_ulps(query, keys, block_size, scale)
        oracle.assert_close(actual[None], expected, dtype, 1, allowed * magnitude)


@pytest.mark.pairwise
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape(
    cuda_isa: str, dtype: torch.dtype, head_size: int, block_size: int, kv_heads: int
) -> None:
    check(dtype, head_size, block_size, kv_heads, Rotation(1.0, True), True)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    "rotation",
    [Rotation(0, True), Rotation(1.0, False), Rotation(0.4, True), Rotation(0.4, False)],
    ids=["none", "interleaved", "neox, of a part", "interleaved, of a part"],
)
def test_every_rotation(cuda_isa: str, rotation: Rotation, has_bias: bool) -> None:
    check(torch.bfloat16, 80, 16, 2, rotation, has_bias)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_projection_in_threes(cuda_isa: str, has_bias: bool) -> None:
    check(torch.float16, 64, 16, HEADS, Rotation(1.0, True), has_bias, in_threes=True)


def arguments(length: int, num_places: int = 2) -> list[object]:
    """Return a call for one sequence of one head."""
    caches, _, _ = filled([History.random(16, 1, 1, 64, torch.float16, 0)], 16)
    tables = torch.zeros(1, num_places, dtype=torch.int32)
    out, qkv = torch.full((1, 1, 64), 7.0).half(), torch.ones(1, 3, 64).half()
    lengths = torch.tensor([length], dtype=torch.int32)
    return [out, qkv, None, None, True, *caches, tables, lengths, 0.125, max(length, 1)]


def test_a_sequence_of_no_tokens_is_padding(cuda_isa: str) -> None:
    call = arguments(0)
    before = [each.clone() for each in call if isinstance(each, Tensor)]
    compiled._C.masked_multihead_attention(*call)
    after = [each for each in call if isinstance(each, Tensor)]
    assert all(map(torch.equal, map(torch.nan_to_num, before), map(torch.nan_to_num, after)))


def test_a_context_beyond_shared_memory_is_refused(cuda_isa: str) -> None:
    """Four bytes for each token, beside the token's own rows."""
    if cuda_isa == "gpu" or "QUIRE_EMULATED_DEVICE" in os.environ:
        pytest.skip("the device is another than the emulator's H100")
    longest = (MULTIPROCESSORS[90].shared_bytes_of_block - 3 * 64 * 2) // 4
    call = arguments(1, -(-longest // 16) + 1)
    compiled._C.masked_multihead_attention(*call[:-1], longest)
    with pytest.raises(RuntimeError, match="shared memory"):
        compiled._C.masked_multihead_attention(*call[:-1], longest + 1)


def test_what_does_not_fit_is_named(cuda_isa: str) -> None:
    call = arguments(1)
    qkv, odd = call[1], torch.zeros(1, 63)
    assert isinstance(qkv, Tensor)
    for place, wrong, message in (
        (1, qkv[:, :2], r"^qkv: must be \[N, H \+ 2 Hkv, D\]"),
        (1, qkv.float(), "^qkv: must be float16, got float32"),
        (2, qkv[0, :2], r"^bias: must be \[H \+ 2 Hkv, D\]"),
        (2, qkv[0].view(3, 1, 64), "^bias: must have the shape of a row of qkv"),
        (3, odd, "^cos_sin_cache: must have an even number of columns, at most .* 64, got 63"),
        (3, torch.zeros(0, 64), "^cos_sin_cache: must have a row for each of 1 positions, got 0"),
        (10, 33, r"^max_seq_len: must be in \[1, 33\), got 33"),
    ):
        with pytest.raises(ValueError, match=message):
            compiled._C.masked_multihead_attention(*call[:place], wrong, *call[place + 1 :])
