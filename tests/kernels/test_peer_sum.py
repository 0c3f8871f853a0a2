"""The sum over ranks in memory of peers: the bits of `tree_sum`, on every rank, in every call."""

import ctypes
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch

from tests.kernels.oracle import DTYPES
from tests.kernels.same_bits import bits
from worker_svc import ops
from worker_svc.parallel.group import tree_sum

if TYPE_CHECKING:
    from worker_svc._C import PeerMemory

T = TypeVar("T")

TIMEOUT_S = 60.0
# Elements of 16 bytes, of a part of a block, of several and of all.
SIZES = (8, 504, 4096, 4104, 40000)
# Of csrc/cuda/peers/peer_memory.h.
HALF_BYTES = 64 * 512 * 16
MAX_PEERS = 8
ADDRESS_OFFSET = 112

at_once = pytest.mark.skipif(
    bool(os.environ.get("QUIRE_PTX")), reason="the interpreter runs one kernel at a time"
)
every_size = pytest.mark.parametrize("size", ops.PEER_COUNTS)


@contextmanager
def group(size: int, timeout_s: float = TIMEOUT_S) -> Iterator[list["PeerMemory"]]:
    """The open memory of the ranks of a group in one process."""
    memories = [ops.peer_memory(rank, size, timeout_s) for rank in range(size)]
    tickets = [each.ticket() for each in memories]
    assert {len(each) for each in tickets} == {ops.PEER_TICKET_BYTES}
    assert [ops.open_peers(each, tickets) for each in memories] == [""] * size
    try:
        yield memories
    finally:
        for each in memories:
            each.close()
        for each in memories:
            each.free()


def run_ranks(size: int, work: Callable[[int], T]) -> list[T]:
    """Run a function as each rank, at once, and on a GPU each on a stream of its own."""
    has_gpu = torch.cuda.is_available()
    all_are_there = threading.Barrier(size, timeout=TIMEOUT_S)

    def run(rank: int) -> T:
        with torch.cuda.stream(torch.cuda.Stream()) if has_gpu else nullcontext():
            if has_gpu:
                # What torch allocates later is part of these: an allocation would have kernels
                # behind it wait for those of other ranks before it, which wait for them.
                for num_bytes in (2**10, 2**22):
                    torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
                all_are_there.wait()
            return work(rank)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def summands(size: int, count: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Tensors of which sums in another order have other bits."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, count, generator=generator)
    return list((values * torch.tensor([1.0, 700.0, 0.01, 30.0] * 2)[:size, None]).to(dtype))


def has_failed(memory: "PeerMemory") -> bool:
    failed = torch.full((1,), 7, dtype=torch.int32)
    ops.peer_failure(memory, failed)
    assert failed.item() in (0, 1)
    return bool(failed.item())


def sums_of(memory: "PeerMemory", tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sums of a rank's tensors in turn."""
    totals = [torch.full_like(each, torch.nan) for each in tensors]
    for total, each in zip(totals, tensors, strict=True):
        ops.peer_sum(memory, total, each)
    return totals


def skip_many_streams(isa: str, size: int) -> None:
    if isa == "gpu" and size > 4:
        pytest.skip("of so many streams of a GPU two may have to run one after the other")


@at_once
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_size
def test_every_rank_has_the_bits_of_the_tree(cuda_isa: str, size: int, dtype: torch.dtype) -> None:
    """Call after call, so that both halves are used again, of few blocks and of many."""
    skip_many_streams(cuda_isa, size)
    counts = [count for count in (*SIZES, *SIZES[::-1]) if count * dtype.itemsize <= 2**20 // size]
    calls = [summands(size, count, dtype, seed) for seed, count in enumerate(counts)]
    expected = [tree_sum(each).to(dtype) for each in calls]
    with group(size) as memories:
        all_totals = run_ranks(
            size, lambda rank: sums_of(memories[rank], [each[rank] for each in calls])
        )
        assert not any(has_failed(each) for each in memories)
    for totals in all_totals:
        for total, wanted in zip(totals, expected, strict=True):
            assert torch.equal(bits(total), bits(wanted))


@at_once
@every_size
def test_ranks_that_are_late_are_awaited(cuda_isa: str, size: int) -> None:
    skip_many_streams(cuda_isa, size)
    calls = [summands(size, 520, torch.bfloat16, seed) for seed in range(40)]
    expected = [tree_sum(each).to(torch.bfloat16) for each in calls]

    def work(rank: int) -> list[torch.Tensor]:
        delays = random.Random(rank)
        totals = []
        for each in calls:
            time.sleep(delays.choice((0, 0, 0, 0.0005, 0.002)))
            totals += sums_of(memories[rank], [each[rank]])
        return totals

    with group(size) as memories:
        for totals in run_ranks(size, work):
            assert all(torch.equal(*each) for each in zip(totals, expected, strict=True))


def write(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_size
def test_a_rank_whose_others_have_come(cuda_isa: str, size: int, dtype: torch.dtype) -> None:
    """The others' pieces and flags are there before it starts, of the next call as well."""
    if cuda_isa == "gpu":
        pytest.skip("the host cannot write there")
    rank, count = size - 1, 4104
    with group(size) as memories:
        own, *_ = struct.unpack_from("<Q", memories[rank].ticket(), ADDRESS_OFFSET)
        for call in range(1, 4):
            parts = summands(size, count, dtype, call)
            for other in range(rank):
                (address,) = struct.unpack_from("<Q", memories[other].ticket(), ADDRESS_OFFSET)
                half = address + call % 2 * HALF_BYTES
                write(half, parts[other].view(torch.uint8).numpy().tobytes())
                for block in range(2 * dtype.itemsize):
                    flag = own + 2 * HALF_BYTES + 4 * (block * MAX_PEERS + other)
                    write(flag, (call + other % 2).to_bytes(4, "little"))
            (total,) = sums_of(memories[rank], [parts[rank]])
            assert torch.equal(bits(total), bits(tree_sum(parts).to(dtype)))
        assert not has_failed(memories[rank])


@pytest.mark.parametrize("is_abandoned", [True, False], ids=["abandoned", "too late"])
@every_size
def test_a_rank_that_others_have_left(cuda_isa: str, size: int, is_abandoned: bool) -> None:
    """Zeros and a report on all ranks, at once for all that comes behind the first failure."""
    with group(size, TIMEOUT_S if is_abandoned else 1e-3) as memories:
        assert not has_failed(memories[0])
        if is_abandoned:
            memories[0].abandon()
        begun = time.monotonic()
        totals = sums_of(memories[0], [torch.ones(4104)] * 3)
        assert time.monotonic() - begun < TIMEOUT_S / 2
        assert all(torch.equal(each, torch.zeros(4104)) for each in totals)
        assert all(has_failed(each) for each in memories)


@at_once
def test_a_rank_that_waits_is_abandoned(cuda_isa: str) -> None:
    with group(2) as memories, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sums_of, memories[0], [torch.ones(8)])
        time.sleep(0.05)
        if cuda_isa != "gpu":
            assert not waiting.done()
        memories[0].abandon()
        (total,) = waiting.result(timeout=TIMEOUT_S / 2)
        assert torch.equal(total, torch.zeros(8))
        assert has_failed(memories[0])
        # The other has all that it needs for this sum, but what it gets of the first is lost.
        assert has_failed(memories[1])
        begun = time.monotonic()
        (total,) = sums_of(memories[1], [torch.ones(8)])
        assert torch.equal(total, torch.zeros(8))
        assert time.monotonic() - begun < TIMEOUT_S / 2


def test_what_is_refused(cuda_isa: str) -> None:
    with pytest.raises(ValueError, match="size: must be 2, 4 or 8, got 3"):
        ops.peer_memory(0, 3, TIMEOUT_S)
    with pytest.raises(ValueError, match="rank: must be in"):
        ops.peer_memory(2, 2, TIMEOUT_S)
    with group(2) as memories:
        memory = memories[0]
        assert memory.max_bytes() == 512 << 10
        x = torch.zeros(8)
        for out, what in (
            (torch.zeros(4), "out: must have the shape of x"),
            (torch.zeros(8, dtype=torch.float16), "out: must be float32, got float16"),
            (torch.zeros(16)[::2], "out: must be contiguous"),
        ):
            with pytest.raises(ValueError, match=what):
                ops.peer_sum(memory, out, x)
        for x, what in (
            (torch.zeros(6), "x: must have a multiple of 16 bytes"),
            (torch.zeros(9)[1:], "x: must have a multiple of 16 bytes"),
            (torch.zeros((512 << 10) // 4 + 4), "x: must have at most 524288 bytes"),
            (torch.zeros(8, dtype=torch.int32), "x: must"),
        ):
            if cuda_isa == "gpu" and x.data_ptr() % 16 != 0:
                continue  # what is copied there lies at a multiple of 16
            with pytest.raises(ValueError, match=what):
                ops.peer_sum(memory, torch.empty_like(x), x)
        with pytest.raises(ValueError, match="ticket: must be 184 bytes, got 1"):
            ops.peer_process(b"x")


def test_ranks_elsewhere_are_named(cuda_isa: str) -> None:
    memories = [ops.peer_memory(rank, 2, TIMEOUT_S) for rank in range(2)]
    tickets = [each.ticket() for each in memories]
    elsewhere = b"another boot".ljust(48, b"\0") + tickets[1][48:]
    assert ops.open_peers(memories[0], [tickets[0], elsewhere]) == (
        "rank 1: it is on another machine"
    )
    with pytest.raises(RuntimeError, match="peer memory: must be open"):
        ops.peer_sum(memories[0], torch.zeros(8), torch.zeros(8))
    for each in memories:
        each.free()
