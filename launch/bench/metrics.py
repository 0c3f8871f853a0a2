"""What a run comes to: throughput, and the latencies that `vllm bench serve` reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from launch.bench.outcome import Outcome

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run second by second.

    Attributes:
        tokens: [seconds] that came in each.
        requests: [seconds] under way at some time of each.
    """

    tokens: npt.NDArray[np.int64]
    requests: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a run comes to. Requests that failed count as nothing but failed.

    Attributes:
        duration: seconds from the start to the end of the last request.
        completed: requests.
        failed: requests.
        total_input_tokens: of those completed.
        total_output_tokens: of those completed.
        good: requests within all limits of the goodput.
        max_output_tokens_per_s: of the best second.
        max_concurrent_requests: most under way at one time.
        latencies: seconds by metric: "ttft", "tpot" (of answers of several tokens) and "e2el" of
            each request, "itl" of each token but the first ones.
        output_lens: tokens of each request, 0 of one that failed.
        itls: of each request, seconds from token to token.
        timeline: second by second.
    """

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    good: int
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: dict[str, Seconds]
    output_lens: list[int]
    itls: list[Seconds]
    timeline: Timeline


def measure(
    outcomes: Sequence[Outcome],
    duration: float,
    count_tokens: Callable[[str], int] | None,
    good: dict[str, float],
) -> Metrics:
    """Return what a run comes to.

    Args:
        outcomes: of all requests.
        duration: seconds of the whole.
        count_tokens: of the text of an answer whose server does not count; None counts its events.
        good: most milliseconds of a good answer, by metric.
    """
    lens, itls, token_times = [], [], []
    for outcome in outcomes:
        times = np.zeros(0)
        count = 0
        if not outcome.error:
            count = _output_len(outcome, count_tokens)
            times = outcome.arrivals.token_times(count)
        lens.append(count)
        itls.append(np.diff(times))
        token_times.append(times)
    done = [(each, count) for each, count in zip(outcomes, lens, strict=True) if not each.error]
    tpots = np.array([_tpot(each, count) for each, count in done])
    latencies = {
        "ttft": np.array([each.ttft for each, _ in done]),
        "tpot": tpots[np.array([count > 1 for _, count in done], dtype=bool)],
        "itl": np.concatenate(itls) if itls else np.zeros(0),
        "e2el": np.array([each.latency for each, _ in done]),
    }
    # A token alone has no time per further token; it is within any limit.
    of_each = {**latencies, "tpot": tpots}
    is_good = np.ones(len(done), dtype=bool)
    for name, limit in good.items():
        is_good &= of_each[name] * 1e3 <= limit
    timeline = _timeline([each for each, _ in done], token_times)
    return Metrics(
        duration=duration,
        completed=len(done),
        failed=len(outcomes) - len(done),
        total_input_tokens=sum(each.num_prompt_tokens for each, _ in done),
        total_output_tokens=sum(lens),
        good=int(is_good.sum()) if good else 0,
        max_output_tokens_per_s=float(timeline.tokens.max(initial=0)),
        max_concurrent_requests=_most_at_once([each for each, _ in done]),
        latencies=latencies,
        output_lens=lens,
        itls=itls,
        timeline=timeline,
    )


def _output_len(outcome: Outcome, count_tokens: Callable[[str], int] | None) -> int:
    if outcome.num_output_tokens is not None:
        return outcome.num_output_tokens
    return len(outcome.arrivals) if count_tokens is None else count_tokens(outcome.text)


def _tpot(outcome: Outcome, num_tokens: int) -> float:
    return (outcome.latency - outcome.ttft) / (num_tokens - 1) if num_tokens > 1 else 0.0


def _timeline(done: Sequence[Outcome], token_times: Sequence[Seconds]) -> Timeline:
    if not done:
        return Timeline(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    began = min(each.started for each in done)
    num_seconds = int(max(each.ended for each in done) - began) + 1
    tokens = np.zeros(num_seconds, dtype=np.int64)
    for times in token_times:
        tokens += np.bincount((times - began).astype(np.int64), minlength=num_seconds)[:num_seconds]
    requests = np.zeros(num_seconds + 1, dtype=np.int64)
    for each in done:
        requests[int(each.started - began)] += 1
        requests[int(each.ended - began) + 1] -= 1
    return Timeline(tokens, np.cumsum(requests)[:-1])


def _most_at_once(done: Sequence[Outcome]) -> int:
    # One that ends as another starts makes room for it.
    changes = [(each.started, 1) for each in done] + [(each.ended, -1) for each in done]
    under_way = most = 0
    for _, change in sorted(changes):
        under_way += change
        most = max(most, under_way)
    return most
