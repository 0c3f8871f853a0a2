"""A cell that goes from one rank to two, to four and back under load: nobody should notice."""

import argparse
import asyncio
import itertools
import time

from launch.cluster.config import embedded_model
from launch.cluster.supervisor import Cluster, ClusterConfig
from tests.chaos.load import load, references
from tests.chaos.trouble import Disturbance
from tests.chaos.verdict import judge
from tests.chaos.workload import SILENT

_SIZES = (2, 4, 1)
_NUM_RESIZES = 10
_SWITCHED = "the new workers serve"


async def resize(arguments: argparse.Namespace) -> int:
    """Run scenario `resize`; return the number of wrong streams."""
    config = ClusterConfig(
        model=embedded_model(),
        port=None,
        grpc_port=0,
        kv_cache_gib=0.03125,
        num_threads=1,
        log_level="error",
    )
    cluster, number = Cluster(config), arguments.streams
    done: list[Disturbance] = []
    await cluster.start()
    try:
        targets = [cluster.router.address]
        expected, alone_s = await references(targets, number)
        over, began = asyncio.Event(), time.monotonic()
        running = asyncio.create_task(load(targets, arguments.seed, number, over))
        sizes = itertools.islice(itertools.cycle(_SIZES), arguments.disturbances or _NUM_RESIZES)
        for turn, size in enumerate(sizes, 1):
            kind = f"resize from {cluster.config.tensor_parallel_size} to {size}"

            def say(line: str, kind: str = kind) -> None:
                if line == _SWITCHED:
                    done.append(Disturbance(kind, time.monotonic()))

            came = await cluster.resize(size, say=say)
            print(
                f"{time.monotonic() - began:7.1f} s  {turn}  {kind}: {came.num_moved} requests "
                f"moved, none waited longer than {came.gap_s:.2f} s",
                flush=True,
            )
        over.set()
        streams = await running
    finally:
        await cluster.stop()
    verdict = judge(streams, expected, alone_s, done)
    print("\n".join(verdict.lines))
    gaps = [
        ended - start
        for stream in streams
        if stream.job.mode not in SILENT
        for start, ended in itertools.pairwise(stream.token_times)
    ]
    print(f"{len(done)} resizes; the largest gap between tokens of a stream: {max(gaps):.2f} s")
    return verdict.num_wrong
