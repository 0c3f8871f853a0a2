"""What the interpreter refuses, in kernels of a few instructions."""

import pytest
import torch
from torch import Tensor

from tests.ptx import interpreter
from tests.ptx.interpreter import InterpreterError
from tests.ptx.short_kernels import run, words

EVERY_ORDER = pytest.mark.parametrize("order", interpreter.ORDERS)


def refused(words_of_message: str, body: str, *arguments: Tensor, **options: object) -> None:
    with pytest.raises(InterpreterError, match=words_of_message):
        run(body, *arguments, **options)


WRITE_AND_READ = (
    "st.shared.u32 [%r2], %r1; {between} xor.b32 %r4, %r2, {flipped}; ld.shared.u32 %r5, [%r4];"
)


@EVERY_ORDER
def test_lanes_need_a_barrier_of_the_warp(order: str) -> None:
    body = WRITE_AND_READ.format(between="{between}", flipped=4)
    run(body.format(between="bar.warp.sync -1;"), shared_bytes=128, order=order)
    for between in ("", "shfl.sync.bfly.b32 %r6|%p1, %r1, 1, 31, -1;"):
        message = "another lane has written|nothing has written"
        refused(message, body.format(between=between), shared_bytes=128, order=order)


@EVERY_ORDER
def test_warps_need_a_barrier_of_the_block(order: str) -> None:
    body = WRITE_AND_READ.format(between="{between}", flipped=128)
    options = {"threads": 64, "shared_bytes": 256, "order": order}
    run(body.format(between="bar.sync 0;"), **options)
    message = "another warp has written|nothing has written|may yet read"
    for between in ("", "bar.warp.sync -1;"):
        refused(message, body.format(between=between), **options)


@EVERY_ORDER
def test_what_is_read_may_not_be_overwritten(order: str) -> None:
    body = "st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r4, %r2, {flipped};"
    body += "ld.shared.u32 %r5, [%r4]; {between} st.shared.u32 [%r2], %r5;"
    options = {"threads": 64, "shared_bytes": 256, "order": order}
    run(body.format(flipped=128, between="bar.sync 0;"), **options)
    run(body.format(flipped=4, between="bar.warp.sync -1;"), **options)
    message = "may yet read|has written"
    refused(message, body.format(flipped=128, between="bar.warp.sync -1;"), **options)
    refused(message, body.format(flipped=4, between=""), **options)


COPY = "mul.lo.s32 %r4, %r1, 16; mul.wide.u32 %rd6, %r4, 1; add.s64 %rd6, %rd1, %rd6;"
COPY += "cp.async.cg.shared.global.L2::128B [%r4], [%rd6], 16, 16;"


@EVERY_ORDER
def test_a_copy_is_there_once_its_thread_has_waited(order: str) -> None:
    source, out = torch.arange(128, dtype=torch.int32), words(128)
    ended = "cp.async.commit_group; cp.async.wait_group 0;"
    read = "ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r9];"
    store = "mul.wide.u32 %rd7, %r9, 1; add.s64 %rd7, %rd2, %rd7;"
    store += "st.global.v4.u32 [%rd7], {%r5, %r6, %r7, %r8};"
    own, others = "mov.u32 %r9, %r4;", "xor.b32 %r9, %r4, 16;"
    options = {"shared_bytes": 512, "order": order}
    run(COPY + ended + own + read + store, source, out, **options)
    assert torch.equal(out, source)
    run(COPY + ended + "bar.warp.sync -1;" + others + read, source, **options)
    refused("what a copy is filling", COPY + own + read, source, **options)
    refused(
        "what a copy is filling",
        COPY + "cp.async.commit_group; cp.async.wait_group 1;" + own + read,
        source,
        **options,
    )
    refused(
        "what a copy is filling", COPY + "cp.async.wait_group 0;" + own + read, source, **options
    )
    refused("another lane has written", COPY + ended + others + read, source, **options)
    refused("a copy to where another is under way", COPY + COPY, source, **options)
    refused("a thread ends while copies are under way", COPY, source, **options)


@EVERY_ORDER
def test_blocks_need_fences_on_both_sides(order: str) -> None:
    """Each block leaves a word; the one that arrives last reads all."""
    body = """
    mul.wide.u32 %rd6, %r3, 4; add.s64 %rd6, %rd1, %rd6; st.global.u32 [%rd6], %r3;
    {before}
    atom.global.add.u32 %r4, [%rd2], 1;
    setp.ne.s32 %p1, %r4, 1; @%p1 bra $end;
    {behind}
    ld.global.u32 %r5, [%rd1]; ld.global.u32 %r6, [%rd1+4]; add.s32 %r5, %r5, %r6;
    st.global.u32 [%rd3], %r5;
$end:
    """
    fence = "membar.gl;"
    for before, behind, is_right in ((fence, fence, True), ("", fence, False), (fence, "", False)):
        shared, counter, out = words(2), words(1), words(1)
        text = body.format(before=before, behind=behind)
        with interpreter.unwritten(shared):
            if is_right:
                run(text, shared, counter, out, blocks=2, threads=1, order=order)
                assert out.item() == 1
            else:
                refused(
                    "another block has written",
                    text,
                    shared,
                    counter,
                    out,
                    blocks=2,
                    threads=1,
                    order=order,
                )


def test_the_kernel_before_is_awaited_before_memory_is_touched() -> None:
    wait = "griddepcontrol.wait; griddepcontrol.launch_dependents;"
    touches = ("ld.global.u32 %r4, [%rd4];", "st.global.u32 [%rd4], %r1;")
    for touch in touches:
        run(f"{wait} {touch}", words())
        refused("beside the kernel before this one", f"{touch} {wait}", words())
    by_half = "setp.lt.u32 %p1, %r1, 16; @%p1 griddepcontrol.wait;"
    refused("beside the kernel before this one", f"{by_half} {touches[0]}", words())


def test_memory_is_what_was_given_and_written() -> None:
    inside, outside = words(32), words(32)
    interpreter.set_tensors([inside])
    try:
        run("ld.global.u32 %r4, [%rd4];", inside)
        refused("outside of the operation's memory", "ld.global.u32 %r4, [%rd4+4];", inside)
        refused("outside of the operation's memory", "st.global.u32 [%rd4], %r1;", outside)
    finally:
        interpreter.set_tensors([])
    with interpreter.unwritten(outside):
        refused("global memory that nothing has written", "ld.global.u32 %r4, [%rd4];", outside)
        run("st.global.u32 [%rd4], %r1; ld.global.u32 %r4, [%rd4];", outside)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("register %r9, which nothing has written", "add.s32 %r4, %r9, 1;"),
        ("misaligned", "ld.global.u32 %r4, [%rd4+2];"),
        ("misaligned", "st.shared.u32 [%r2+1], %r1;"),
        ("outside of shared memory", "st.shared.u32 [%r2+256], %r1;"),
        ("outside of shared memory", "cvta.shared.u64 %rd6, %rd5; st.u32 [%rd6+256], %r1;"),
        ("shared memory that nothing has written", "ld.shared.u32 %r4, [%r2];"),
        (
            "deadlock",
            "setp.lt.u32 %p1, %r1, 8; @%p1 bra $end; bar.warp.sync -1;\n$end: bar.warp.sync -1;",
        ),
        (
            "never come",
            "setp.lt.u32 %p1, %r1, 8; @%p1 bra $end;\n bar.sync 0;\n$end: bar.warp.sync -1;",
        ),
        (
            "lanes that have ended",
            "setp.lt.u32 %p1, %r1, 8; @%p1 ret; shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;",
        ),
        ("its mask leaves out", "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, 255;"),
        ("not understood", "sin.approx.f32 %f1, %f2;"),
        ("a kernel that traps", "setp.lt.u32 %p1, %r1, 8; @%p1 trap;"),
        ("another size", "add.s32 %r4, %rd1, 1;"),
    ],
)
def test_what_is_undefined_is_refused(message: str, body: str) -> None:
    refused(message, body, words(64), shared_bytes=256)


def test_the_error_names_the_thread_the_instruction_and_the_source() -> None:
    message = r"thread 33 of block \(1, 0, 0\).*ld.global.u32 %r4, \[%rd4\]"
    inside = words(33)
    interpreter.set_tensors([inside])
    try:
        body = "setp.eq.u32 %p1, %r3, 0; @%p1 ret; ld.global.u32 %r4, [%rd4];"
        refused(message, body, inside, blocks=2, threads=64)
    finally:
        interpreter.set_tensors([])


@EVERY_ORDER
def test_a_release_passes_on_what_is_behind_a_barrier(order: str) -> None:
    out = words(64)
    body = "st.global.u32 [%rd4], %r1; {between} st.release.sys.global.u32 [%rd1+128], %r1;"
    run(body.format(between="bar.sync 0;"), out, order=order)
    message = "a release beside what other threads have written"
    refused(message, body.format(between=""), out, order=order)
