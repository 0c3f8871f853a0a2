"""From the times of tokens to the figures of a row, and from rounds to medians."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from bench.peers.shapes import Shape
from bench.peers.workloads import Pace, Request

# As many tokens as every engine here computes in one step, at most.
_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of a workload.

    Attributes:
        seconds: from the first arrival to the last token.
        tokens_per_s: output tokens over these.
        ttft_p50, ttft_p90, ttft_p99: from a request's arrival to its first token, in seconds.
        tpot_p50, tpot_p90, tpot_p99: means of a request's later tokens, in seconds.
        goodput: answers per second that met the pace's limits.
    """

    seconds: float
    tokens_per_s: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p50: float
    tpot_p90: float
    tpot_p99: float
    goodput: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, between the two nearest values in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def figures(requests: Sequence[Request], times: Sequence[Sequence[float]], pace: Pace) -> Figures:
    """Return the figures of a run.

    Args:
        requests: that were sent.
        times: of each one's tokens, in seconds since the run began.
        pace: whose limits make an answer count as good.

    Raises:
        ValueError: an engine sent another number of tokens than it was asked for.
    """
    for request, came in zip(requests, times, strict=True):
        if len(came) != request.max_tokens:
            raise ValueError(f"tokens: must be {request.max_tokens}, got {len(came)}")
    ttfts = [came[0] - sent.arrival_s for sent, came in zip(requests, times, strict=True)]
    tpots = [(came[-1] - came[0]) / max(1, len(came) - 1) for came in times]
    seconds = max(came[-1] for came in times) - min(sent.arrival_s for sent in requests)
    good = sum(
        ttft <= pace.ttft_s and tpot <= pace.tpot_s for ttft, tpot in zip(ttfts, tpots, strict=True)
    )
    return Figures(
        seconds=seconds,
        tokens_per_s=sum(map(len, times)) / seconds,
        ttft_p50=percentile(ttfts, 50),
        ttft_p90=percentile(ttfts, 90),
        ttft_p99=percentile(ttfts, 99),
        tpot_p50=percentile(tpots, 50),
        tpot_p90=percentile(tpots, 90),
        tpot_p99=percentile(tpots, 99),
        goodput=good / seconds,
    )


def medians(runs: Iterable[Figures]) -> Figures:
    """Return the median of each figure over rounds."""
    rows = [asdict(run) for run in runs]
    return Figures(
        **{
            field.name: statistics.median(row[field.name] for row in rows)
            for field in fields(Figures)
        }
    )


def roof_seconds(
    requests: Sequence[Request],
    shape: Shape,
    weight_bytes: float,
    kv_bytes: float,
    bytes_per_s: float,
    flop_per_s: float,
) -> float:
    """Return the least time in which a machine could answer requests that are all there at once.

    Steps of continuous batching, each as long as the larger of its bytes over the bandwidth and its
    operations over the GEMM's rate (Williams et al., 2009: the roofline), nothing else taking time.
    A prefix that all prompts share is computed once.

    Args:
        requests: in the order in which they are begun.
        shape: of the model.
        weight_bytes: of one weight.
        kv_bytes: of one element of the KV cache.
        bytes_per_s: read bandwidth.
        flop_per_s: of large products of matrices.
    """
    shared = _shared_tokens(requests)
    computed = [shared if index else 0 for index in range(len(requests))]
    sampled = [0] * len(requests)
    seconds = 0.0
    while True:
        budget, rows, context, read = _STEP_TOKENS, 0, 0, 0
        for index, request in enumerate(requests):
            if sampled[index] == request.max_tokens:
                continue
            known = len(request.prompt) + sampled[index]
            tokens = min(known - computed[index], budget)
            if not tokens:
                break
            budget -= tokens
            computed[index] += tokens
            rows += tokens
            read += computed[index]
            context += tokens * computed[index]
            sampled[index] += computed[index] == known
        if not rows:
            return seconds
        elements = shape.kv_elements
        moved = shape.dense_weights * weight_bytes + read * elements * kv_bytes
        # Scores and their product with the values: two products for each query head.
        flops = 2 * rows * shape.dense_weights
        flops += 2 * context * elements * shape.heads // shape.kv_heads
        seconds += max(moved / bytes_per_s, flops / flop_per_s)


def _shared_tokens(requests: Sequence[Request]) -> int:
    """Return how many tokens all prompts begin with alike; none is shared by one alone."""
    if len(requests) < 2:
        return 0
    columns = zip(*(request.prompt for request in requests), strict=False)
    for number, column in enumerate(columns):
        if len(set(column)) > 1:
            return number
    return 0
