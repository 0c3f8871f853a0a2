"""What the machine gives now: measured beside each row, since it changes within minutes."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from worker_svc import ops

_BUFFER_BYTES = 256 * 2**20
_GEMM = 2048


@dataclass(frozen=True, slots=True)
class Probe:
    """The machine at one time.

    Attributes:
        bytes_per_s: of a linear read of memory, far larger than the caches.
        flop_per_s: of torch's product of two large matrices.
        load: mean number of runnable processes of the last minute.
    """

    bytes_per_s: float
    flop_per_s: float
    load: float


def processor() -> str:
    """Return the processor's name, family and model, and how many cores there are."""
    fields: dict[str, str] = {}
    num_cores = 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
        num_cores += name.strip() == "processor"
    names = [fields.get(name, "?") for name in ("model name", "cpu family", "model")]
    return "{} (family {}, model {}), {} cores".format(*names, num_cores)


def best_seconds(body: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of a body."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        body()
        times.append(time.perf_counter() - began)
    return min(times)


def probe(num_threads: int, dtype: str) -> Probe:
    """Measure; takes about a second and holds 256 MiB meanwhile.

    Args:
        num_threads: that the engines have too.
        dtype: of the matrices; int8 models compute in bfloat16.
    """
    torch.set_num_threads(num_threads)
    ops.set_num_threads(num_threads)
    buffer = torch.zeros(_BUFFER_BYTES, dtype=torch.int8)
    read = best_seconds(lambda: ops.stream_read(buffer), 5)
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    left, right = (torch.randn(_GEMM, _GEMM).to(kind) for _ in range(2))
    multiply = best_seconds(lambda: left @ right, 5)
    return Probe(_BUFFER_BYTES / read, 2 * _GEMM**3 / multiply, os.getloadavg()[0])
