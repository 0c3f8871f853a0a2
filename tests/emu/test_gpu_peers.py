"""Ranks of one machine make small sums in memory that they share, and leave it like a group.

Two ranks are threads with one emulated GPU, or processes with one each.
"""

import multiprocessing
import multiprocessing.connection
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu_sums
from quire.contract.errors import UnavailableError
from quire.contract.workers import Meeting
from tests.emu.emulated_device import EmulatedDevice, EmulatedDeviceOfProcess, on_the_same_gpu
from tests.emu.emulated_torch import Machine
from tests.emu.launches import launched
from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner
from worker_svc import ops
from worker_svc.parallel import peer_sums
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.group import Alone, ParallelGroup, tree_sum

HOST = "127.0.0.1"
SIZE = 2
TIMEOUT_S = 20.0


class Ranks:
    """Two ranks as threads."""

    def __init__(self, gpu: EmulatedDevice) -> None:
        self.device = gpu.torch_device
        self.communicators = [ProcessCommunicator(self.device) for _ in range(SIZE)]
        self.groups = [
            ParallelGroup(rank, SIZE, each) for rank, each in enumerate(self.communicators)
        ]
        self._address = self.communicators[0].open_meeting_place(HOST)
        self._epoch = 0

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return what a function returns for each rank; all run at once."""

        def run_one(rank: int) -> Any:
            with on_the_same_gpu():
                return work(rank)

        with ThreadPoolExecutor(SIZE) as threads:
            return list(threads.map(run_one, range(SIZE)))

    def join(self) -> None:
        self._epoch += 1
        meeting = Meeting(self._address, HOST, self._epoch, TIMEOUT_S, bytes(32))
        self.run(lambda rank: self.communicators[rank].join(rank, SIZE, meeting))

    def leave(self) -> None:
        for each in self.communicators:
            each.leave()


@pytest.fixture
def ranks(emulated_gpu: EmulatedDevice) -> Ranks:
    return Ranks(emulated_gpu)


def parts_of(rows: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 64, generator=generator).bfloat16() for _ in range(SIZE)]


def test_small_sums_are_one_kernel_and_large_ones_are_of_nccl(ranks: Ranks) -> None:
    ranks.join()
    launches, ours = {}, {}

    def work(rank: int, parts: list[torch.Tensor]) -> torch.Tensor:
        own = parts[rank].to(ranks.device)
        before, ours_before = Counter(Machine.current.launches), launched()
        total = ranks.groups[rank].all_reduce(own)
        launches[rank] = (Machine.current.launches - before).total()
        ours[rank] = (launched() - ours_before)["launches"]
        assert ranks.communicators[rank].failure().item() == 0  # type: ignore[union-attr]
        return total.cpu()

    for rows, is_small in ((1, True), (7, True), (4096, True), (4097, False)):
        parts = parts_of(rows, rows)
        for total in ranks.run(lambda rank, parts=parts: work(rank, parts)):
            assert torch.equal(total, tree_sum(parts).to(torch.bfloat16))
        assert all(count == int(is_small) for count in ours.values())
        assert all((others == 0) == is_small for others in launches.values())
    ranks.leave()


def test_a_graph_counts_on_and_is_dropped_before_the_memory(
    ranks: Ranks, emulated_gpu: EmulatedDevice
) -> None:
    ranks.join()
    graphs: dict[int, Any] = {}
    places: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def capture(rank: int) -> None:
        own, totals = torch.zeros(3, 64, dtype=torch.bfloat16, device=ranks.device), []
        places[rank] = own, totals

        def sums() -> None:
            # Of the first the second makes another.
            totals.append(ranks.groups[rank].all_reduce(own))
            totals.append(ranks.groups[rank].all_reduce(totals[0]))

        graphs[rank] = emulated_gpu.capture(sums, None)

    def replay(rank: int, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        own, totals = places[rank]
        own.copy_(parts[rank].to(ranks.device))
        graphs[rank].replay()
        return [each.cpu().clone() for each in totals]

    ranks.run(capture)
    for seed in range(5):
        parts = parts_of(3, seed)
        total = tree_sum(parts).to(torch.bfloat16)
        for first, second in ranks.run(lambda rank, parts=parts: replay(rank, parts)):
            assert torch.equal(first, total)
            assert torch.equal(second, total + total)
    for each in ranks.communicators:
        with pytest.raises(RuntimeError, match="peer memory: a graph holds sums"):
            each.leave()
    graphs.clear()
    ranks.leave()


def test_memory_is_fresh_in_each_group_and_freed_when_all_have_left(ranks: Ranks) -> None:
    for _ in range(4):
        ranks.join()
        parts = parts_of(2)
        for total in ranks.run(
            lambda rank, parts=parts: (
                ranks.groups[rank].all_reduce(parts[rank].to(ranks.device)).cpu()
            )
        ):
            assert torch.equal(total, tree_sum(parts).to(torch.bfloat16))
        left = [each._peer_sums._left for each in ranks.communicators]
        assert left == [[], []]
    ranks.leave()
    assert [len(each._peer_sums._left) for each in ranks.communicators] == [1, 1]


@pytest.mark.parametrize("refusing", [{0}, {1}, {0, 1}], ids=str)
def test_what_one_rank_has_not_none_uses(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, refusing: set[int]
) -> None:
    """One that may not, or one that cannot open what the others have."""
    open_peers, allocate = ops.open_peers, peer_sums._allocate

    def refuse_memory(rank: int, size: int, timeout_s: float) -> Any:
        monkeypatch.setenv(peer_sums.SETTING, "0" if rank in refusing else "1")
        return allocate(rank, size, timeout_s)

    def refuse_opening(memory: Any, tickets: Any) -> str:
        problem = open_peers(memory, tickets)
        return "rank 1: somewhere else" if opened.pop() in refusing else problem

    opened = [0, 1]
    lock = threading.Lock()

    def in_turn(*arguments: Any) -> Any:
        with lock:
            return refuse_memory(*arguments)

    for name, refuse in (("_allocate", in_turn), ("open_peers", refuse_opening)):
        with monkeypatch.context() as patch:
            patch.setattr(peer_sums if name == "_allocate" else ops, name, refuse)
            ranks.join()
        parts = parts_of(2)
        assert [each.failure() for each in ranks.communicators] == [None, None]
        for total in ranks.run(
            lambda rank, parts=parts: (
                ranks.groups[rank].all_reduce(parts[rank].to(ranks.device)).cpu()
            )
        ):
            assert torch.equal(total, tree_sum(parts).to(torch.bfloat16))
    ranks.leave()


def test_a_rank_that_waits_alone_is_abandoned(ranks: Ranks) -> None:
    ranks.join()
    first = ranks.communicators[0]

    def wait() -> tuple[torch.Tensor, int]:
        with on_the_same_gpu():
            total = ranks.groups[0].all_reduce(torch.ones(4, device=ranks.device))
            failure = first.failure()
            assert failure is not None
            return total.cpu(), int(failure.item())

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        time.sleep(0.1)
        assert first.is_waiting
        first.abandon()
        total, failure = waiting.result(timeout=TIMEOUT_S / 2)
    assert not first.is_waiting
    assert (total.tolist(), failure) == ([0.0] * 4, 1)
    # What the other gets of this one by NCCL now follows from zeros, and it knows.
    with on_the_same_gpu():
        other = ranks.communicators[1].failure()
        assert other is not None and other.item() == 1
    ranks.join()
    for total in ranks.run(
        lambda rank: ranks.groups[rank].all_reduce(torch.ones(4, device=ranks.device)).cpu()
    ):
        assert total.tolist() == [2.0] * 4
    ranks.leave()


def run_process(rank: int, address: str, pipe: "multiprocessing.connection.Connection") -> None:
    """Be a rank of two processes: sum as often as asked, until the pipe ends."""
    device = EmulatedDeviceOfProcess(rank)
    device.start_thread(None)
    communicator = ProcessCommunicator(device.torch_device)
    if not address:
        address = communicator.open_meeting_place(HOST)
        pipe.send(address)
    communicator.join(rank, SIZE, Meeting(address, HOST, 1, TIMEOUT_S, bytes(32)))
    for seed in iter(pipe.recv, None):
        part = parts_of(40, seed)[rank].to(device.torch_device)
        if seed < 0:
            threading.Timer(0.3, communicator.abandon).start()
        total = communicator.sum_in_order(part)
        assert total is not None
        failure = communicator.failure()
        assert failure is not None
        pipe.send((total.cpu().float().tolist(), int(failure.item())))


def test_processes_share_memory_and_one_is_killed(emulated_gpu: EmulatedDevice) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes, address = [], [], ""
    for rank in range(SIZE):
        own, other = context.Pipe()
        process = context.Process(target=run_process, args=(rank, address, other), daemon=True)
        process.start()
        address = address or own.recv()
        pipes.append(own)
        processes.append(process)
    try:
        for seed in range(6):
            for pipe in pipes:
                pipe.send(seed)
            expected = tree_sum(parts_of(40, seed)).bfloat16().float().tolist()
            assert [pipe.recv() for pipe in pipes] == [(expected, 0)] * SIZE
        processes[1].kill()
        processes[1].join()
        pipes[0].send(-1)
        assert pipes[0].poll(TIMEOUT_S / 2)
        assert pipes[0].recv() == ([[0.0] * 64] * 40, 1)
        pipes[0].send(None)
    finally:
        for each in processes:
            each.join(TIMEOUT_S)
            each.kill()


class FailsLater(Alone):
    """The communicator of a rank whose sums fail from a moment that the test chooses."""

    def __init__(self, device: torch.device) -> None:
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)

    def failure(self) -> torch.Tensor:
        return self.failed.clone()


def test_steps_behind_a_failure_are_lost(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """None of their tokens is reported or held; those of the steps before are."""
    save_model(tmp_path, CONFIGS["llama"]())
    communicator = FailsLater(emulated_gpu.torch_device)
    parallel = ParallelGroup(0, 1, communicator)
    runner = load_runner(
        tmp_path, device=emulated_gpu, parallel=parallel, num_blocks=60, max_num_seqs=4
    )
    driver = Driver(runner)
    driver.add(1, [5, 6, 7])
    driver.step()
    driver.step()
    assert len(runner.read_mirror().sequences) == 1
    communicator.failed.fill_(1)
    with pytest.raises(UnavailableError, match="another rank was lost"):
        driver.step()
    mirror = runner.read_mirror()
    assert (mirror.sequences, len(mirror.blocks)) == ((), 0)
    communicator.failed.fill_(0)
    runner.forget_sequences()
    again = Driver(runner)
    again.add(1, [5, 6, 7])
    again.step()
    again.step()
    assert again.tokens[1] == driver.tokens[1][:5]


def test_the_benchmark(emulated_gpu: EmulatedDevice) -> None:
    # Of the wide rows memory of peers takes those in bfloat16 alone.
    wide = (512 << 10) // 2
    found = gpu_sums.measure(SIZE, (64, wide), (1,), 2, EmulatedDeviceOfProcess)
    kinds = {(each.library, each.dtype, each.features) for each in found}
    assert len(found) == len(kinds) == len(gpu_sums.LIBRARIES) * 2 * 2 - 1
    assert ("peer memory", "float32", wide) not in kinds
    assert all(each.us > 0 for each in found)
