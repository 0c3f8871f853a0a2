"""Products of warpgroups as the interpreter computes them, and what it refuses of them."""

from collections.abc import Sequence

import pytest
import torch

from tests.ptx import interpreter
from tests.ptx.interpreter import InterpreterError
from tests.ptx.short_kernels import run

EVERY_ORDER = pytest.mark.parametrize("order", interpreter.ORDERS)
ROWS, ROW_BYTES, DEPTH = 64, 128, 64
COLUMNS = 16
FLOATS = ", ".join(f"%f{i}" for i in range(8))
# 128 threads copy 64 rows of 64 elements, chunk by chunk into the places of its bits, from %rd1 to
# the beginning of shared memory, and 16 rows from %rd2 to what follows.
COPY_ROW = """
add.s32 %r5, {first}, %r4;
and.b32 %r6, %r5, 7; and.b32 %r7, %r1, 7; xor.b32 %r7, %r7, %r6; shl.b32 %r7, %r7, 4;
shl.b32 %r8, %r5, 7; add.s32 %r7, %r7, %r8; add.s32 %r7, %r7, {to};
and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4; add.s32 %r6, %r6, %r8;
mul.wide.u32 %rd6, %r6, 1; add.s64 %rd6, {matrix}, %rd6;
cp.async.cg.shared.global.L2::128B [%r7], [%rd6], 16, 16;
"""
COPY = "shr.u32 %r4, %r1, 3;" + "".join(
    [COPY_ROW.format(first=16 * i, to=0, matrix="%rd1") for i in range(4)]
    + [COPY_ROW.format(first=0, to=ROWS * ROW_BYTES, matrix="%rd2")]
)
WAIT_FOR_COPIES = "cp.async.commit_group; cp.async.wait_group 0;"
FENCE_PROXY = "fence.proxy.async.shared::cta;"
BARRIER = "bar.sync 0;"
READY = COPY + WAIT_FOR_COPIES + FENCE_PROXY + BARRIER
SUMS = "".join(f"mov.f32 %f{i}, 0f3F800000;" for i in range(8))
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned {};"
DONE = COMMIT + WAIT.format(0)
STORE = """
mul.wide.u32 %rd7, %r1, 32; add.s64 %rd7, %rd3, %rd7;
st.global.v4.f32 [%rd7], {%f0, %f1, %f2, %f3}; st.global.v4.f32 [%rd7+16], {%f4, %f5, %f6, %f7};
"""
NAME = "wgmma.mma_async.sync.aligned.m64n16k16.f32.{name}.{name}"
# The first operand in registers, from the rows of %rd1 as mma has them, and the second by columns:
# 16 rows of 16 columns at the beginning of each row of the second matrix.
LOAD_OPERAND = """
shr.u32 %r4, %r1, 5; shl.b32 %r4, %r4, 4; and.b32 %r5, %r1, 31; shr.u32 %r5, %r5, 2;
add.s32 %r4, %r4, %r5; shl.b32 %r4, %r4, 7; and.b32 %r5, %r1, 3; shl.b32 %r5, %r5, 2;
add.s32 %r4, %r4, %r5; mul.wide.u32 %rd6, %r4, 1; add.s64 %rd6, %rd1, %rd6;
ld.global.u32 %r10, [%rd6]; ld.global.u32 %r11, [%rd6+1024];
ld.global.u32 %r12, [%rd6+16]; ld.global.u32 %r13, [%rd6+1040];
"""
OPERAND = "{%r10, %r11, %r12, %r13}"


def descriptor(address: int, piece_bytes: int = 0) -> int:
    return address // 16 | piece_bytes // 16 << 16 | 1024 // 16 << 32 | 1 << 62


def product(
    k: int = 0,
    *,
    name: str = "bf16",
    a: int | None = None,
    b: int | None = None,
    adds: bool = True,
    sums: str = FLOATS,
) -> str:
    """Return the product of elements k to k + 15 of each row."""
    a = descriptor(2 * k) if a is None else a
    b = descriptor(ROWS * ROW_BYTES + 2 * k) if b is None else b
    return (
        f"mov.u64 %rd8, {a}; mov.u64 %rd9, {b}; setp.eq.b32 %p1, 0, {0 if adds else 1};"
        f"{NAME.format(name=name)} {{{sums}}}, %rd8, %rd9, %p1, 1, 1, 0, 0;"
    )


def product_of_registers(
    *, name: str = "bf16", b: int | None = None, operand: str = OPERAND, sums: str = FLOATS
) -> str:
    """Return the product of elements 0 to 15 of each row of the first matrix."""
    b = descriptor(ROWS * ROW_BYTES) if b is None else b
    return (
        f"mov.u64 %rd9, {b}; setp.eq.b32 %p1, 0, 0;"
        f"{NAME.format(name=name)} {{{sums}}}, {operand}, %rd9, %p1, 1, 1, 1;"
    )


def matrices(dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Return operands, and the result that is not there yet: by thread."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, DEPTH, generator=rng).to(dtype) for rows in (ROWS, COLUMNS))
    return [a, b, torch.full((128, 8), torch.nan)]


def by_rows(threads: torch.Tensor) -> torch.Tensor:
    """Return a result as it lies in the registers of threads, as a matrix."""
    result = torch.empty(ROWS, COLUMNS)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(8):
            row = 16 * warp + lane // 4 + i // 2 % 2 * 8
            result[row, i // 4 * 8 + lane % 4 * 2 + i % 2] = threads[thread, i]
    return result


def in_order(a: torch.Tensor, b: torch.Tensor, sums: torch.Tensor, depth: int) -> torch.Tensor:
    """Return sums to which products were added one by one."""
    for k in range(depth):
        sums = sums + a[:, k, None].float() * b[None, :, k].float()
    return sums


def run_all(*parts: str, order: str = "forward", threads: int = 128) -> list[torch.Tensor]:
    operands = matrices()
    body = "".join(parts)
    shared_bytes = (ROWS + COLUMNS) * ROW_BYTES
    run(body, *operands, threads=threads, shared_bytes=shared_bytes, order=order)
    return operands


def refused(message: str, *parts: str, order: str = "forward", threads: int = 128) -> None:
    with pytest.raises(InterpreterError, match=message):
        run_all(*parts, order=order, threads=threads)


@EVERY_ORDER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_are_added_in_ascending_order(dtype: torch.dtype, order: str) -> None:
    a, b, out = matrices(dtype)
    name = "bf16" if dtype == torch.bfloat16 else "f16"
    steps = "".join(product(k, name=name) for k in range(0, DEPTH, 16))
    body = READY + SUMS + FENCE + steps + DONE + STORE
    run(body, a, b, out, threads=128, shared_bytes=(ROWS + COLUMNS) * ROW_BYTES, order=order)
    assert torch.equal(by_rows(out), in_order(a, b, torch.ones(ROWS, COLUMNS), DEPTH))


@EVERY_ORDER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_of_registers_by_columns(dtype: torch.dtype, order: str) -> None:
    a, b, out = matrices(dtype)
    name = "bf16" if dtype == torch.bfloat16 else "f16"
    body = READY + LOAD_OPERAND + SUMS + FENCE + product_of_registers(name=name) + DONE + STORE
    run(body, a, b, out, threads=128, shared_bytes=(ROWS + COLUMNS) * ROW_BYTES, order=order)
    columns = b[:16, :COLUMNS].T
    assert torch.equal(by_rows(out), in_order(a, columns, torch.ones(ROWS, COLUMNS), 16))


@EVERY_ORDER
def test_columns_lie_in_pieces_of_64(order: str) -> None:
    """72 columns, of which 8 are those of the second piece: the rows of the first operand."""
    a, b, _ = matrices()
    out = torch.full((128, 36), torch.nan)
    sums = [f"%g{i}" for i in range(36)]
    name = NAME.format(name="bf16").replace("n16", "n72")
    body = (
        f".reg .f32 %g<36>; {READY}{LOAD_OPERAND}"
        + "".join(f"mov.f32 {each}, 0f00000000;" for each in sums)
        + f"{FENCE} mov.u64 %rd9, {descriptor(ROWS * ROW_BYTES - 2048, 2048)};"
        + f"setp.eq.b32 %p1, 0, 0; {name} {{{', '.join(sums)}}}, {OPERAND}, %rd9, %p1, 1, 1, 1;"
        + f"{DONE} mul.wide.u32 %rd7, %r1, 144; add.s64 %rd7, %rd3, %rd7;"
        + "".join(f"st.global.f32 [%rd7+{4 * i}], {each};" for i, each in enumerate(sums))
    )
    run(body, a, b, out, threads=128, shared_bytes=(ROWS + COLUMNS) * ROW_BYTES, order=order)
    columns = torch.cat([a[ROWS - 16 :], b[:16, :8]], 1).T
    expected = in_order(a, columns, torch.zeros(ROWS, 72), 16)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(36):
            row = 16 * warp + lane // 4 + i // 2 % 2 * 8
            assert out[thread, i] == expected[row, i // 4 * 8 + lane % 4 * 2 + i % 2]


@EVERY_ORDER
def test_an_operand_in_registers_stays_until_the_product_is_waited_for(order: str) -> None:
    message = "which a product of the warpgroup may yet read"
    begun = (READY, LOAD_OPERAND, SUMS, FENCE, product_of_registers())
    for touch in ("mov.u32 %r9, %r12;", "mov.u32 %r12, 0;"):
        run_all(*begun, DONE, touch, order=order)
        refused(message, *begun, touch, DONE, order=order)
        refused(message, *begun, COMMIT, touch, WAIT.format(0), order=order)
    again = (FENCE, product_of_registers())
    refused(message, *begun, *again, DONE, order=order)


def test_an_operand_in_registers_is_fenced_before_a_product() -> None:
    late = (READY, SUMS, FENCE, LOAD_OPERAND, product_of_registers(), DONE)
    refused("without wgmma.fence", *late)
    refused("nothing has written", READY, SUMS, FENCE, product_of_registers(), DONE)


@pytest.mark.parametrize(
    ("message", "b"),
    [
        ("not at a multiple of 1,024", descriptor(ROWS * ROW_BYTES + 32)),
        ("not at a multiple of 1,024", descriptor(ROWS * ROW_BYTES + 128)),
        ("not understood", descriptor(ROWS * ROW_BYTES) & ~(3 << 62)),
        ("outside of shared memory", descriptor(1 << 16)),
    ],
)
def test_columns_lie_where_they_may(message: str, b: int) -> None:
    refused(message, READY, LOAD_OPERAND, SUMS, FENCE, product_of_registers(b=b), DONE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", 1, 1, 1;", ", 1, 1, 2;"),
        (", 1, 1, 1;", ", -1, 1, 1;"),
        (", 1, 1, 1;", ", 1, 1, 0, 1;"),
        ("%r12, %r13}", "%r12}"),
    ],
)
def test_other_products_of_registers_are_not_understood(old: str, new: str) -> None:
    changed = product_of_registers()
    assert old in changed
    message = "not understood|number of operands"
    refused(message, READY, LOAD_OPERAND, SUMS, FENCE, changed.replace(old, new), DONE)


@EVERY_ORDER
def test_registers_are_shared_out_by_whole_warpgroups(order: str) -> None:
    take, give = (f"setmaxnreg.{name}.sync.aligned.u32 {{}};" for name in ("inc", "dec"))
    run_all(take.format(240), give.format(24), order=order)
    message = "a number of registers"
    refused(message, take.format(250), order=order)
    refused(message, give.format(16), order=order)
    apart = "setp.lt.u32 %p2, %r1, 32; @%p2 bra $end;\n"
    refused("leaves out what others|another warp", apart, take.format(240), "$end:", order=order)


@EVERY_ORDER
def test_a_product_that_does_not_add_begins_at_zero(order: str) -> None:
    a, b, out = run_all(READY, FENCE, product(adds=False), DONE, STORE, order=order)
    assert torch.equal(by_rows(out), in_order(a, b, torch.zeros(ROWS, COLUMNS), 16))


@EVERY_ORDER
def test_registers_belong_to_a_product_until_it_is_waited_for(order: str) -> None:
    message = "which a product of the warpgroup adds to"
    begun = (READY, SUMS, FENCE, product())
    for touch in ("mov.f32 %f9, %f3;", "mov.f32 %f3, 0f00000000;", STORE):
        run_all(*begun, DONE, touch, order=order)
        refused(message, *begun, touch, DONE, order=order)
        refused(message, *begun, COMMIT, touch, WAIT.format(0), order=order)
        refused(message, *begun, COMMIT, WAIT.format(1), touch, WAIT.format(0), order=order)
        # What is in no group is not waited for.
        refused(message, *begun, WAIT.format(0), touch, DONE, order=order)
    groups = (*begun, COMMIT, product(16), COMMIT)
    refused(message, *groups, WAIT.format(1), STORE, WAIT.format(0), order=order)
    moved = FLOATS.replace("%f0,", "%f9,")
    refused(
        "registers that another product",
        *(READY, SUMS, "mov.f32 %f9, %f0;", FENCE, product(), product(16, sums=moved), DONE),
        order=order,
    )


def test_registers_are_fenced_before_a_product() -> None:
    message = "without wgmma.fence"
    refused(message, READY, SUMS, product(), DONE)
    refused(message, READY, FENCE, SUMS, product(), DONE)
    refused(message, READY, SUMS, FENCE, "mov.f32 %f9, %f3;", product(), DONE)
    refused("nothing has written", READY, FENCE, product(), DONE)


@EVERY_ORDER
def test_operands_may_not_change_until_the_product_is_waited_for(order: str) -> None:
    begun = (READY, SUMS, FENCE, product(), COMMIT)
    message = "a product of a warpgroup may yet read|another warp may yet read|lane may yet read"
    store = "setp.lt.u32 %p2, %r1, 80; shl.b32 %r7, %r1, 7; @%p2 st.shared.u32 [%r7], %r1;"
    for change in (store, COPY + WAIT_FOR_COPIES):
        run_all(*begun, WAIT.format(0), BARRIER, change, order=order)
        refused(message, *begun, change, WAIT.format(0), order=order)
        refused(message, *begun, BARRIER, change, WAIT.format(0), order=order)
        refused(message, *begun, WAIT.format(0), change, order=order)
        refused(message, *begun, WAIT.format(1), BARRIER, change, WAIT.format(0), order=order)


@EVERY_ORDER
@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("a copy is filling", (COPY, FENCE_PROXY, BARRIER)),
        ("without fence.proxy.async", (COPY, WAIT_FOR_COPIES, BARRIER)),
        ("without fence.proxy.async", (COPY, FENCE_PROXY, WAIT_FOR_COPIES, BARRIER)),
        (
            "another (warp|lane) has written|nothing has written",
            (COPY, WAIT_FOR_COPIES, FENCE_PROXY),
        ),
        ("without fence.proxy.async", (COPY, WAIT_FOR_COPIES, BARRIER, FENCE_PROXY)),
        (
            "without fence.proxy.async",
            (COPY, WAIT_FOR_COPIES, "setp.ne.u32 %p2, %r1, 72;", f"@%p2 {FENCE_PROXY}", BARRIER),
        ),
        (
            "without fence.proxy.async",
            (READY, "setp.eq.u32 %p2, %r1, 5; @%p2 st.shared.u32 [%r2], %r1;", BARRIER),
        ),
        ("nothing has written", ("",)),
    ],
)
def test_operands_are_there_and_fenced(message: str, parts: Sequence[str], order: str) -> None:
    begun = (SUMS, FENCE, product(), COMMIT, WAIT.format(0), WAIT_FOR_COPIES)
    refused(message, *parts, *begun, order=order)


def test_stores_are_there_once_they_are_fenced() -> None:
    store = "st.shared.u32 [%r2], %r1;"
    run_all(READY, store, FENCE_PROXY, BARRIER, SUMS, FENCE, product(), DONE)
    refused("without fence.proxy", READY, store, BARRIER, SUMS, FENCE, product(), DONE)


@pytest.mark.parametrize(
    ("message", "a"),
    [
        ("not at a multiple of 1,024", descriptor(128)),
        ("beyond its rows", descriptor(112)),
        ("not understood", descriptor(0) & ~(3 << 62)),
        ("not understood", descriptor(0) ^ 3 << 62),
        ("not understood", descriptor(0) ^ 1 << 32),
        ("not understood", descriptor(0) | 1 << 49),
        ("outside of shared memory", descriptor(4096)),
    ],
)
def test_matrices_lie_where_they_may(message: str, a: int) -> None:
    refused(message, READY, SUMS, FENCE, product(a=a), DONE)


def test_a_kernel_waits_for_its_products() -> None:
    message = "ends while products are under way"
    refused(message, READY, SUMS, FENCE, product())
    refused(message, READY, SUMS, FENCE, product(), COMMIT)
    refused(message, READY, SUMS, FENCE, product(), COMMIT, WAIT.format(1))


@EVERY_ORDER
def test_the_four_warps_of_a_warpgroup_go_together(order: str) -> None:
    apart = "setp.lt.u32 %p2, %r1, {}; @%p2 bra $end;\n"
    done = (product(), DONE)
    message = "another warp of the warpgroup|leaves out what others"
    refused(message, READY, SUMS, FENCE, apart.format(32), *done, "$end:", order=order)
    refused("never come", READY, SUMS, FENCE, apart.format(8), *done, "$end:", order=order)
    other_rows = "setp.lt.u32 %p2, %r1, 32; @%p2 add.s64 %rd9, %rd9, 2; "
    changed = product().replace("setp.eq.b32", other_rows + "setp.eq.b32")
    refused(message, READY, SUMS, FENCE, changed, DONE, order=order)
    lanes = changed.replace("%r1, 32", "%r1, 3")
    refused("differ by lane", READY, SUMS, FENCE, lanes, DONE, order=order)
    message = "fewer than four warps"
    refused(message, SUMS, FENCE, *done, order=order, threads=96)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "m64n12k16"),
        ("m64n16k16", "m64n264k16"),
        ("m64n16k16", "m64n16k8"),
        ("1, 1, 0, 0", "1, 1, 1, 0"),
        ("1, 1, 0, 0", "-1, 1, 0, 0"),
        ("m64n16k16", "m64n8k16"),
        ("f32.bf16.bf16", "f32.tf32.tf32"),
        ("f32.bf16.bf16", "f16.f16.f16"),
        ("f32.bf16.bf16", "f32.bf16.f16"),
    ],
)
def test_other_products_are_not_understood(old: str, new: str) -> None:
    assert old in product()
    message = "not understood|number of operands"
    refused(message, READY, SUMS, FENCE, product().replace(old, new), DONE)
