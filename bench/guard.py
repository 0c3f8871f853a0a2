"""`make bench-guard`: ratios that must not fall, beside those recorded for the same processor.

Ratios of two things timed in turn hold where times do not: on another day, or a busier machine.
Dense layers over torch's own, paged attention over torch's and over a linear read, a whole cluster
over the roof of its requests (bench/peers/statistics.py).
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.nn import functional

from bench.kernels_cpu import NUM_KV_HEADS, PagedBatch, best_of_alternating
from bench.peers.adapters.protocol import Options
from bench.peers.engine_process import EngineProcess
from bench.peers.environments import BUILD, OURS
from bench.peers.probes import probe, processor
from bench.peers.shapes import SHAPES, write_model
from bench.peers.statistics import figures, roof_seconds
from bench.peers.workloads import PACES, WORKLOADS, warm_up
from worker_svc import ops
from worker_svc.layers.packed_linear import PackedLinear

RECORD = Path(__file__).with_name("guard.json")
TOLERANCE = 0.2
SHAPE = SHAPES["125M"]

Ratios = dict[str, float]


def fallen(recorded: Mapping[str, float], measured: Mapping[str, float]) -> list[str]:
    """Return a line for each ratio that is more than TOLERANCE below its record, or gone."""
    lines = []
    for name, least in recorded.items():
        value = measured.get(name, 0.0)
        if value < least * (1 - TOLERANCE):
            lines.append(f"{name}: must be at least {least * (1 - TOLERANCE):.2f}, got {value:.2f}")
    return lines


def linear_ratios() -> Ratios:
    """Return how many times as fast as torch's our dense layer is, by its number of rows."""
    weight = torch.randn(5632, 2048).bfloat16()
    ours, ratios = PackedLinear(weight, None), {}
    for rows in (1, 8, 64, 512):
        x = torch.randn(rows, 2048).bfloat16()

        def torchs(x: torch.Tensor = x) -> torch.Tensor:
            return functional.linear(x, weight)

        def packed(x: torch.Tensor = x) -> torch.Tensor:
            return ours(x)

        own, other = best_of_alternating(10, packed, torchs)
        ratios[f"dense layer over torch's, {rows} rows"] = other / own
    return ratios


def attention_ratios() -> Ratios:
    """Return decode attention over torch's on contiguous keys, and over a linear read."""
    batch = PagedBatch.random(16, 1024, 64, torch.bfloat16)
    query = torch.randn(16, 4 * NUM_KV_HEADS, 64).bfloat16()
    own, read, other = best_of_alternating(
        10, batch.attend(query, 1), batch.read_linearly, batch.sdpa(query, 1)
    )
    return {"attention over a linear read": read / own, "attention over torch's": other / own}


def cluster_ratios(num_threads: int, rounds: int) -> Ratios:
    """Return a cluster's speed over the roof, medians over rounds."""
    model = write_model(SHAPE, BUILD / "models" / SHAPE.name)
    shares: dict[str, list[float]] = {"single": [], "mix": []}
    with EngineProcess(OURS) as process:
        process.start(Options(str(model), "bfloat16", num_threads, 64, 2048, 1))
        process.run(warm_up())
        for number in range(rounds):
            for name, values in shares.items():
                pace = PACES[SHAPE.name]
                requests = WORKLOADS[name].requests(number + 1, pace, True)
                before = probe(num_threads, "bfloat16")
                taken = figures(requests, process.run(requests), pace).seconds
                after = probe(num_threads, "bfloat16")
                bytes_per_s = (before.bytes_per_s + after.bytes_per_s) / 2
                flop_per_s = (before.flop_per_s + after.flop_per_s) / 2
                roof = roof_seconds(requests, SHAPE, 2.0, 2.0, bytes_per_s, flop_per_s)
                values.append(roof / taken)
    return {f"cluster over the roof, {name}": statistics.median(s) for name, s in shares.items()}


def main() -> int:
    """Print ratios beside their records; return 1 if any has fallen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="write what is measured")
    arguments = parser.parse_args()
    num_threads = len(os.sched_getaffinity(0))
    # Kernels on one thread: how two libraries' threads wait for each other is not compared.
    torch.set_num_threads(1)
    ops.set_num_threads(1)
    records: dict[str, Ratios] = json.loads(RECORD.read_text())
    name = processor()
    recorded = records.get(name, {})
    runs = [{**linear_ratios(), **attention_ratios()} for _ in range(arguments.rounds)]
    measured = {ratio: statistics.median(run[ratio] for run in runs) for ratio in runs[0]}
    measured |= cluster_ratios(num_threads, arguments.rounds)
    print(name)
    for ratio, value in measured.items():
        beside = f", recorded {recorded[ratio]:.2f}" if ratio in recorded else ""
        print(f"  {ratio:34} {value:5.2f}{beside}")
    if arguments.record:
        records[name] = {ratio: round(value, 2) for ratio, value in measured.items()}
        RECORD.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
        return 0
    if not recorded:
        print("nothing to compare with: record this processor with --record")
    lines = fallen(recorded, measured)
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
