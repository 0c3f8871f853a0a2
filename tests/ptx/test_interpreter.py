"""What the interpreter computes, in kernels of a few instructions."""

import struct
from collections.abc import Sequence

import pytest
import torch

from tests.ptx.short_kernels import run, words


def bits(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def of_one(statement: str) -> int:
    """Return the word that a statement leaves in %r10."""
    out = words(1)
    run(f"{statement}\n st.global.u32 [%rd1], %r10;", out, threads=1)
    return int(out[0]) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("mov.u32 %r4, -1; add.s32 %r10, %r4, 3;", 2),
        ("mov.u32 %r4, -7; mov.u32 %r5, 2; div.s32 %r10, %r4, %r5;", 2**32 - 3),
        ("mov.u32 %r4, -7; mov.u32 %r5, 2; rem.s32 %r10, %r4, %r5;", 2**32 - 1),
        ("mov.u32 %r4, 0x80000000; mul.hi.s32 %r10, %r4, 4;", 2**32 - 2),
        ("mov.u32 %r4, 0x80000000; mul.hi.u32 %r10, %r4, 4;", 2),
        ("mov.u32 %r4, -8; shr.s32 %r10, %r4, 40;", 2**32 - 1),
        ("mov.u32 %r4, -8; shr.u32 %r10, %r4, 32;", 0),
        ("mov.u32 %r4, 1; shl.b32 %r10, %r4, 33;", 0),
        (
            "mov.u32 %r4, 0x44332211; mov.u32 %r5, 0x88776655; prmt.b32 %r10, %r4, %r5, 0x70c4;",
            0x88110055,
        ),
        ("mov.u32 %r4, 0x0000f000; bfind.shiftamt.u32 %r10, %r4;", 16),
        ("mov.u32 %r4, 6; brev.b32 %r10, %r4;", 0x60000000),
        ("mov.u32 %r4, 5; mov.u32 %r5, -1; bfi.b32 %r10, %r4, %r5, 4, 8;", 0xFFFFF05F),
        (
            "mov.u64 %rd4, 5; mov.u64 %rd5, 0xffffffff; bfi.b64 %rd6, %rd4, %rd5, 28, 8; "
            "shr.u64 %rd6, %rd6, 24; cvt.u32.u64 %r10, %rd6;",
            0x5F,
        ),
        ("mov.f32 %f1, 0f7F800000; cvt.rzi.s32.f32 %r10, %f1;", 0x7FFFFFFF),
        ("mov.f32 %f1, 0f7FC00000; cvt.rzi.s32.f32 %r10, %f1;", 0),
        ("mov.f32 %f1, 0fC0200000; cvt.rzi.s32.f32 %r10, %f1;", 2**32 - 2),
        ("mov.f32 %f1, 0f40200000; cvt.rni.f32.f32 %f2, %f1; mov.b32 %r10, %f2;", bits(2.0)),
        (
            "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f33000000; "
            "add.rn.f32 %f3, %f1, %f2; mov.b32 %r10, %f3;",
            bits(1.0),
        ),
        # -1 and a little: down is away from zero.
        (
            "mov.f32 %f1, 0fBF800000; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0fB2000000;"
            "fma.rm.f32 %f4, %f1, %f2, %f3; mov.b32 %r10, %f4;",
            0xBF800001,
        ),
        (
            "mov.f32 %f1, 0f7FC00000; mov.f32 %f2, 0f40000000; "
            "max.f32 %f3, %f1, %f2; mov.b32 %r10, %f3;",
            bits(2.0),
        ),
        (
            "mov.f32 %f1, 0f7FC00000; setp.gtu.f32 %p1, %f1, 0f00000000; selp.u32 %r10, 7, 9, %p1;",
            7,
        ),
        ("mov.f32 %f1, 0f7FC00000; setp.gt.f32 %p1, %f1, 0f00000000; selp.u32 %r10, 7, 9, %p1;", 9),
        (
            "mov.f32 %f1, 0f3F804000; mov.f32 %f2, 0f3F80C000; cvt.rn.bf16x2.f32 %r10, %f2, %f1;",
            0x3F813F80,
        ),
        ("mov.f32 %f1, 0f00000001; ex2.approx.ftz.f32 %f2, %f1; mov.b32 %r10, %f2;", bits(1.0)),
        ("mov.u32 %r4, 0x8001; cvt.u16.u32 %rs1, %r4; cvt.s32.s16 %r10, %rs1;", 0xFFFF8001),
    ],
)
def test_a_result(statement: str, expected: int) -> None:
    assert of_one(statement) == expected


def test_every_e4m3_is_exact_and_every_half_rounds_to_the_nearest() -> None:
    codes = torch.arange(256, dtype=torch.int32)
    for first in range(0, 256, 32):
        out = codes[first : first + 32].clone()
        body = """
        ld.global.u32 %r4, [%rd4]; cvt.u16.u32 %rs1, %r4;
        cvt.rn.f16x2.e4m3x2 %r5, %rs1; st.global.u32 [%rd4], %r5;
        """
        run(body, out)
        expected = codes[first : first + 32].to(torch.uint8).view(torch.float8_e4m3fn).half()
        actual = out.view(torch.float16)[::2]
        assert torch.equal(actual.nan_to_num(-999), expected.nan_to_num(-999))
    halves = torch.arange(-(2**15), 2**15, 37).to(torch.int16).view(torch.float16).float()
    for values in halves[halves.isfinite()].split(32):
        out = values.clone()
        body = """
        ld.global.f32 %f1, [%rd4]; mov.f32 %f2, 0f00000000;
        cvt.rn.satfinite.e4m3x2.f32 %rs1, %f2, %f1; cvt.u32.u16 %r4, %rs1;
        st.global.u32 [%rd4], %r4;
        """
        run(body, out, threads=len(out))
        rounded = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).int()
        assert torch.equal(out.view(torch.int32), rounded)


@pytest.mark.parametrize(
    ("mode", "operand", "clamp", "source"),
    [
        ("bfly", 5, 31, lambda lane: lane ^ 5),
        ("idx", 9, 31, lambda lane: 9),
        ("idx", 3, 0x181F, lambda lane: lane // 8 * 8 + 3),
        ("up", 4, 0, lambda lane: lane - 4 if lane >= 4 else lane),
        ("down", 4, 31, lambda lane: lane + 4 if lane < 28 else lane),
    ],
)
def test_shuffles(mode: str, operand: int, clamp: int, source: object) -> None:
    out = words()
    body = f"shfl.sync.{mode}.b32 %r4|%p1, %r1, {operand}, {clamp}, -1; st.global.u32 [%rd4], %r4;"
    run(body, out)
    assert out.tolist() == [source(lane) for lane in range(32)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("dtype", "a", "b", "c", "product", "sums"),
    [
        # Products halfway between two numbers, to which c adds what float32 cannot hold beside.
        (torch.float16, (3, 3), (683, 683), (2.0**-20, -(2.0**-20)), 2048, (2050, 2048)),
        (torch.float16, (3, -3), (685, 685), (-(2.0**-20), 2.0**-20), 2056, (2054, -2054)),
        (torch.bfloat16, (3, 3), (87, 87), (2.0**-100, -(2.0**-100)), 260, (262, 260)),
        (torch.bfloat16, (3, -3), (89, 89), (-(2.0**-100), 2.0**-100), 268, (266, -266)),
    ],
)
def test_pairs_of_16_bits_are_rounded_once(
    dtype: torch.dtype,
    a: tuple[int, int],
    b: tuple[int, int],
    c: tuple[float, float],
    product: int,
    sums: tuple[int, int],
) -> None:
    def pair(values: Sequence[float]) -> int:
        return int(torch.tensor(values, dtype=dtype).view(torch.int32)) & 0xFFFFFFFF

    name = {torch.float16: "f16x2", torch.bfloat16: "bf16x2"}[dtype]
    moves = f"mov.b32 %r4, {pair(a)}; mov.b32 %r5, {pair(b)}; mov.b32 %r6, {pair(c)};"
    signed = [product if each > 0 else -product for each in a]
    assert of_one(f"{moves} mul.{name} %r10, %r4, %r5;") == pair(signed)
    assert of_one(f"{moves} fma.rn.{name} %r10, %r4, %r5, %r6;") == pair(sums)


def test_lanes_that_part_meet_again() -> None:
    """A vote counts those that are there, a match those that agree, and a sum adds them."""
    out = words()
    body = """
    and.b32 %r4, %r1, 3; setp.lt.u32 %p1, %r1, 8; mov.u32 %r5, 0;
    @!%p1 bra $join;
    mov.u32 %r6, 255;
    match.any.sync.b32 %r5, %r4, %r6;
    redux.sync.add.u32 %r5, %r1, %r5;
$join:
    vote.sync.ballot.b32 %r7, %p1, -1;
    add.s32 %r5, %r5, %r7;
    st.global.u32 [%rd4], %r5;
    """
    run(body, out)
    pairs = [4, 6, 8, 10]
    assert out.tolist() == [255 + (pairs[lane % 4] if lane < 8 else 0) for lane in range(32)]


def test_generic_addresses_are_of_shared_or_global_memory() -> None:
    """Even lanes write to and read from the first, odd ones the second."""
    out = words()
    body = """
    cvt.u64.u32 %rd6, %r2; cvta.shared.u64 %rd6, %rd6;
    and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 0; selp.b64 %rd7, %rd6, %rd4, %p1;
    add.s32 %r5, %r1, 7; st.u32 [%rd7], %r5; ld.u32 %r6, [%rd7];
    @%p1 ld.shared.u32 %r6, [%r2]; @%p1 st.u32 [%rd4], %r6;
    """
    run(body, out, shared_bytes=128)
    assert out.tolist() == [lane + 7 for lane in range(32)]


def test_a_product_of_matrices_by_way_of_shared_memory() -> None:
    """ldmatrix, movmatrix and mma against torch, each by the fragments of the manual."""
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(16, 16, generator=rng).bfloat16()
    b = torch.randn(16, 8, generator=rng).bfloat16()  # [k, n], read transposed
    c = torch.zeros(32, 4)
    body = """
    mul.lo.s32 %r4, %r1, 16; mul.wide.u32 %rd6, %r4, 1; add.s64 %rd6, %rd1, %rd6;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd6];
    st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};
    bar.warp.sync -1;
    and.b32 %r9, %r1, 15; shl.b32 %r9, %r9, 5; shr.u32 %r10, %r1, 4; shl.b32 %r10, %r10, 4;
    add.s32 %r9, %r9, %r10;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5,%r6,%r7,%r8}, [%r9];
    bar.warp.sync -1;
    and.b32 %r9, %r1, 15; shl.b32 %r9, %r9, 4; mul.wide.u32 %rd6, %r9, 1; add.s64 %rd6, %rd2, %rd6;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd6];
    setp.lt.u32 %p1, %r1, 16;
    @%p1 st.shared.v4.u32 [%r9], {%r10, %r11, %r12, %r13};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r10,%r11,%r12,%r13}, [%r9];
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r11;
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r11;
    mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {%f1,%f2,%f3,%f4}, {%r5,%r6,%r7,%r8}, {%r10,%r11}, {%f1,%f2,%f3,%f4};
    mul.wide.u32 %rd6, %r4, 1; add.s64 %rd6, %rd3, %rd6;
    st.global.v4.f32 [%rd6], {%f1, %f2, %f3, %f4};
    """
    run(body, a, b, c, shared_bytes=512)
    product = torch.empty(16, 8)
    for lane in range(32):
        for i in range(4):
            product[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = c[lane, i]
    torch.testing.assert_close(product, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
