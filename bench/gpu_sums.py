"""Sums over ranks on the GPUs of a machine, each a process: `python -m bench.gpu_sums --size 2`.

They are made in memory of peers, as far as that takes them, by NCCL in a fixed order, which is a
gather and a sum, and by NCCL's all-reduce. What is timed is a graph of sums that depend on each
other, as those of a decode step do.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from quire.contract.workers import Meeting
from worker_svc.device.cuda import CudaDevice
from worker_svc.parallel.communicator import ProcessCommunicator
from worker_svc.parallel.group import ParallelGroup
from worker_svc.parallel.peer_sums import SETTING

HOST = "127.0.0.1"
TIMEOUT_S = 60.0
FEATURES = (4096, 8192)
ROWS = (1, 8, 16, 32, 64)
NUM_SUMS, NUM_REPLAYS = 64, 20
# With `--invariant` summands are float32.
DTYPES = (torch.bfloat16, torch.float32)
# Each with what the setting is for it, and whether it adds in order.
LIBRARIES = {"peer memory": ("1", True), "nccl in order": ("0", True), "nccl": ("0", False)}


@dataclass(frozen=True, slots=True)
class Timed:
    """A kind of sums.

    Attributes:
        library: one of LIBRARIES.
        dtype: of the summands, e.g. "bfloat16".
        features: of a row.
        rows: of the summands.
        us: microseconds of a sum.
    """

    library: str
    dtype: str
    features: int
    rows: int
    us: float


def measure(
    size: int,
    features: Sequence[int] = FEATURES,
    rows: Sequence[int] = ROWS,
    num_sums: int = NUM_SUMS,
    make_device: Callable[[int], CudaDevice] = CudaDevice.open,
) -> list[Timed]:
    """Time sums of each kind, but for those that memory of peers does not take.

    Args:
        size: number of ranks.
        features: of rows.
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
        return list(of_ranks[0])
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
    features: Sequence[int],
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
    for epoch, (library, (setting, in_order)) in enumerate(LIBRARIES.items(), 1):
        os.environ[SETTING] = setting
        communicator.join(rank, size, Meeting(address, HOST, epoch, TIMEOUT_S, bytes(32)))
        group = ParallelGroup(rank, size, communicator, adds_in_order=in_order)
        for dtype, width, height in product(DTYPES, features, rows):
            # An all-reduce overwrites its summand: zeros stay what they are.
            own = torch.zeros(height, width, dtype=dtype, device=device.torch_device)
            if library == "peer memory" and communicator.sum_in_order(own) is None:
                continue
            us = _time(device, group, own, num_sums)
            found.append(Timed(library, str(dtype).removeprefix("torch."), width, height, us))
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


def table(found: Sequence[Timed]) -> str:
    """Return a table in Markdown: a dash is a sum that memory of peers does not take."""
    us = {(each.dtype, each.features, each.rows, each.library): each.us for each in found}
    lines = [f"| summand | {', us | '.join(LIBRARIES)}, us |", "|---" * (1 + len(LIBRARIES)) + "|"]
    for dtype, features, rows in dict.fromkeys(key[:3] for key in us):
        times = [us.get((dtype, features, rows, library)) for library in LIBRARIES]
        cells = " | ".join("-" if each is None else f"{each:.1f}" for each in times)
        lines.append(f"| {rows} x {features}, {dtype} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table in Markdown, and all of it as JSON where --json says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=2, help="number of ranks, and of GPUs")
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--json", type=Path, help="file that gets the figures")
    arguments = parser.parse_args()
    found = measure(arguments.size, arguments.features)
    print(table(found))
    if arguments.json is not None:
        figures = {"size": arguments.size, "sums": [asdict(each) for each in found]}
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
