"""`make bench-tp`: a model split over 1, 2 and 4 workers, with the same bits on all.

Whole clusters over loopback, one thread a worker, a Llama of 160M parameters with made-up weights.
For each number of workers: memory of a worker's weights, output tokens per second, and how many
streams have the tokens that one worker gives. Splits are measured in turn, the median
of several rounds is printed. With as many workers as cores or more, this shows the price of
splitting, not a gain: workers on one machine share its cores and its memory bandwidth.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from bench.dummy_model import write_model
from launch.cluster.supervisor import Cluster, ClusterConfig
from quire import AsyncClient, SamplingParams
from quire.observe import log
from quire.rpc import open_channel
from quire.v1 import worker_pb2, worker_pb2_grpc

SIZES = (1, 2, 4)
NUM_STREAMS = 16
NUM_TOKENS = 48
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """One cluster's work.

    Attributes:
        weight_bytes: of the worker that holds most.
        tokens_per_s: output tokens at the client.
        tokens: of each stream.
    """

    weight_bytes: int
    tokens_per_s: float
    tokens: Tokens


async def weight_bytes(address: str) -> int:
    """Ask a worker how much memory its weights take."""
    async with open_channel(address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        description = await stub.Describe(worker_pb2.DescribeRequest())
        return int(description.weight_bytes)


async def run(model: Path, size: int) -> Run:
    """Start a cluster, have it answer all streams at once, stop it."""
    cluster = Cluster(
        ClusterConfig(
            model=model,
            port=None,
            grpc_port=0,
            tensor_parallel_size=size,
            device="cpu",
            load_format="dummy",
            kv_cache_gib=0.25,
            num_threads=1,
        )
    )
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:

            async def answer(index: int) -> tuple[int, ...]:
                params = SamplingParams(
                    temperature=0.8, seed=index, max_tokens=NUM_TOKENS, ignore_eos=True
                )
                output = await client.generate([10 + index] * 16, params)
                return tuple(output.token_ids)

            await answer(0)  # warm
            began = time.perf_counter()
            tokens = list(await asyncio.gather(*map(answer, range(NUM_STREAMS))))
            seconds = time.perf_counter() - began
        workers = [each for each in cluster.services if each.name.startswith("worker")]
        largest = max([await weight_bytes(worker.address) for worker in workers])
    finally:
        await cluster.stop()
    return Run(largest, NUM_STREAMS * NUM_TOKENS / seconds, tokens)


async def bench(rounds: int) -> bool:
    """Print the table; return whether all runs gave the same tokens."""
    runs: dict[int, list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory), CONFIG)
        for _ in range(rounds):
            for size in SIZES:
                runs[size].append(await run(Path(directory), size))
    print(
        f"{NUM_STREAMS} streams of {NUM_TOKENS} tokens, medians of {rounds} rounds, "
        f"{os.cpu_count()} cores, one thread a worker"
    )
    print("  workers  weights of a worker  tokens/s  streams as with one worker")
    first = runs[1][0]
    shares = {size: same_streams(runs[size], first.tokens) for size in SIZES}
    for size in SIZES:
        held = runs[size][0].weight_bytes
        print(
            f"  {size:7}  {held / 2**20:8.1f} MiB {held / first.weight_bytes:6.1%}  "
            f"{speed(runs[size]):8,.0f}  {shares[size]:.0%}"
        )
    return all(share == 1 for share in shares.values())


def speed(runs: list[Run]) -> float:
    """Return the median tokens per second."""
    return statistics.median(each.tokens_per_s for each in runs)


def same_streams(runs: list[Run], expected: Tokens) -> float:
    """Return the share of streams, over all runs, that have the expected tokens."""
    same = [own == other for each in runs for own, other in zip(each.tokens, expected, strict=True)]
    return sum(same) / len(same)


def main() -> int:
    """Print the table; return 1 if tokens depended on the number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    return int(not asyncio.run(bench(arguments.rounds)))


if __name__ == "__main__":
    sys.exit(main())
