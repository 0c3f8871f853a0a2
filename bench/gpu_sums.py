"""Sums over ranks on the GPUs of a machine, each a process: `python -m bench.gpu_sums --size 2`.

They are made in memory of peers, and by NCCL. What is timed is a graph of sums that depend on each
other, as those of a decode step do.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from quire.contract.workers import Meeting
from worker_svc.device.cuda import CudaDevice
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.group import ParallelGroup
from worker_svc.parallel.peer_sums import SETTING

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
FEATURES = 4096
ROWS = (1, 8, 16, 32, 64)
NUM_SUMS, NUM_REPLAYS = 64, 20
# With `--invariant` summands are float32.
DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Timed:
    """A kind of sums.

    Attributes:
        library: "peer memory" or "nccl".
        dtype: of the summands.
        rows: of the summands, each of the features asked for.
        us: microseconds of a sum.
    """

    library: str
    dtype: torch.dtype
    rows: int
    us: float


def measure(
    size: int,
    features: int = FEATURES,
    rows: Sequence[int] = ROWS,
    num_sums: int = NUM_SUMS,
    make_device: Callable[[int], CudaDevice] = CudaDevice.open,
) -> list[Timed]:
    """Time sums of each kind.

    Args:
        size: number of ranks.
        features: of a row.
        rows: of summands.
        num_sums: of a graph.
        make_device: returns the device of a rank, in its process.

    Raises:
        RuntimeError: a rank has failed.
    """
    context = multiprocessing.get_context("spawn")
    ranks, address = [], ""
    try:
        for rank in range(size):
            own, other = context.Pipe()
            arguments = (other, rank, size, address, features, rows, num_sums, make_device)
            process = context.Process(target=_run_rank, args=arguments, daemon=True)
            process.start()
            other.close()
            ranks.append((process, own))
            if rank == 0:
                address = _receive(own)
        of_ranks = [_receive(own) for _, own in ranks]
        return [Timed(*each) for each in of_ranks[0]]
    finally:
        for process, _ in ranks:
            process.join(TIMEOUT_S)
            process.kill()


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError as error:
        raise RuntimeError("a rank has failed: its error is printed above") from error


def _run_rank(
    connection: Connection,
    rank: int,
    size: int,
    address: str,
    features: int,
    rows: Sequence[int],
    num_sums: int,
    make_device: Callable[[int], CudaDevice],
) -> None:
    """Be a rank: send where to meet if it is the first, and what was timed."""
    device = make_device(rank)
    device.start_thread(None)
    communicator = ProcessCommunicator(device.torch_device)
    if rank == 0:
        address = communicator.open_meeting_place(HOST)
        connection.send(address)
    found = []
    for epoch, library in enumerate(("peer memory", "nccl"), 1):
        os.environ[SETTING] = "1" if library == "peer memory" else "0"
        communicator.join(rank, size, Meeting(address, HOST, epoch, TIMEOUT_S, bytes(32)))
        group = ParallelGroup(rank, size, communicator, adds_in_order=True)
        for dtype in DTYPES:
            for num_rows in rows:
                own = torch.ones(num_rows, features, dtype=dtype, device=device.torch_device)
                found.append((library, dtype, num_rows, _time(device, group, own, num_sums)))
    communicator.leave()
    connection.send(found)


def _time(device: CudaDevice, group: ParallelGroup, own: torch.Tensor, num_sums: int) -> float:
    """Return the microseconds of a sum."""

    def work() -> None:
        total = own
        for _ in range(num_sums):
            total = group.all_reduce(total)

    group.all_reduce(own)  # what libraries make at their first call
    graph = device.capture(work, device.new_pool())
    graph.replay()
    device.synchronize()
    begun = time.perf_counter()
    for _ in range(NUM_REPLAYS):
        graph.replay()
    device.synchronize()
    return 1e6 * (time.perf_counter() - begun) / (NUM_REPLAYS * num_sums)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2, help="number of ranks, and of GPUs")
    parser.add_argument("--features", type=int, default=FEATURES)
    arguments = parser.parse_args()
    found = measure(arguments.size, arguments.features)
    us = {(each.library, each.dtype, each.rows): each.us for each in found}
    print(
        f"| sum of {arguments.features} over {arguments.size} ranks | peer memory, us | NCCL, us |"
    )
    print("|---|---|---|")
    for dtype in DTYPES:
        for rows in ROWS:
            times = [us[library, dtype, rows] for library in ("peer memory", "nccl")]
            cells = " | ".join(f"{each:.1f}" for each in times)
            print(f"| {rows} rows, {str(dtype).removeprefix('torch.')} | {cells} |")


if __name__ == "__main__":
    main()
