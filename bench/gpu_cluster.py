"""Output tokens per second of a whole cluster whose worker computes on a GPU, as clients get them.

Beside scheduler and worker in one process (bench.gpu), these figures show what router, wire and
client cost. Part of `make bench-gpu`.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.cluster.supervisor import Cluster, ClusterConfig
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Of one number of streams.

    Attributes:
        streams: requests at once.
        tokens_per_s: output tokens, from the first request to the last token.
        first_token_ms: median time to the first token of a stream.
        token_ms: median time from one token of a stream to the next, first tokens left out.
        longest_ms: the longest of these times.
    """

    streams: int
    tokens_per_s: float
    first_token_ms: float
    token_ms: float
    longest_ms: float


@dataclass(slots=True)
class _Stream:
    """When a stream's tokens came, in seconds: the time of each message, and its tokens."""

    began_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.began_s

    @property
    def intervals_s(self) -> list[float]:
        """Between tokens; those of one message came together."""
        found = []
        for (before_s, _), (now_s, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            found += [now_s - before_s] + [0.0] * (count - 1)
        return found


async def _read(client: AsyncClient, prompt: list[int], params: SamplingParams) -> _Stream:
    stream = _Stream(time.perf_counter())
    async for event in client.stream(prompt, params):
        if isinstance(event, Delta) and event.token_ids:
            stream.arrivals.append((time.perf_counter(), len(event.token_ids)))
    return stream


async def _run(
    client: AsyncClient, prompts: list[list[int]], params: SamplingParams
) -> ClusterResult:
    began_s = time.perf_counter()
    streams = await asyncio.gather(*(_read(client, prompt, params) for prompt in prompts))
    seconds = time.perf_counter() - began_s
    num_tokens = sum(count for stream in streams for _, count in stream.arrivals)
    if num_tokens != len(prompts) * (params.max_tokens or 0):
        raise RuntimeError(f"{len(prompts)} streams got {num_tokens} tokens in all")
    intervals_s = [each for stream in streams for each in stream.intervals_s]
    return ClusterResult(
        streams=len(prompts),
        tokens_per_s=round(num_tokens / seconds, 1),
        first_token_ms=round(1e3 * statistics.median(each.first_token_s for each in streams), 3),
        token_ms=round(1e3 * statistics.median(intervals_s), 3),
        longest_ms=round(1e3 * max(intervals_s), 3),
    )


async def measure(
    model: Path, prompts: Sequence[list[list[int]]], num_tokens: int, **options: Any
) -> list[ClusterResult]:
    """Start a cluster, have it answer sets of prompts, each set twice, and stop it.

    Args:
        model: directory, with a tokenizer.
        prompts: token ids of each set; its streams run at once.
        num_tokens: of each stream, at least 2.
        options: of ClusterConfig.

    Returns:
        Of each set the second run, which nothing is compiled or captured for.

    Raises:
        QuireError: the cluster does not start, or a request fails.
    """
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=num_tokens, ignore_eos=True)
    # Else the second run would find the prompts in the cache.
    config = ClusterConfig(
        model=model, port=None, grpc_port=0, enable_prefix_caching=False, **options
    )
    cluster = Cluster(config, progress=lambda line: print(line, flush=True))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            results = []
            for each in prompts:
                await _run(client, each, params)
                results.append(await _run(client, each, params))
            return results
    finally:
        await cluster.stop()
