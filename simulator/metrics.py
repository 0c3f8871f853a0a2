"""The figures of a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from router.cells.choice import RoutingPolicy
from simulator.config import SimulationConfig
from simulator.messages import Answered, IntervalResult, Usage
from simulator.rate_curve import Burst

FloatArray = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 99)
BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures, over the requests that arrived after the warm-up unless noted.

    Attributes:
        policy: of the routers.
        num_requests: in the whole run; every one was answered.
        goodput_per_s: answers per second of arrival that met both targets.
        answered_per_s: requests per second of arrival.
        good_share: share of the answers that met both targets.
        tokens_per_s: tokens sampled per second while requests arrived.
        ttft_ms: percentiles of the time to the first token.
        tpot_ms: percentiles of the time for each further token, the mean of an answer.
        prefix_hit_rate: share of prompt tokens that were found in a cache.
        preemptions: in the whole run.
        recomputed_tokens: tokens computed again after preemptions, in the whole run.
        imbalance: of requests over cells: standard deviation over mean, averaged over time.
        peak_streams: most requests under way at once, in the whole run.
        moved_requests: requests taken from a cell that ended, in the whole run.
        simulated_s: length of the run, until the last answer.
        wall_s: seconds that it took to compute.
        cpu_s: CPU seconds of all processes together.
    """

    policy: str
    num_requests: int
    goodput_per_s: float
    answered_per_s: float
    good_share: float
    tokens_per_s: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    prefix_hit_rate: float
    preemptions: int
    recomputed_tokens: int
    imbalance: float
    peak_streams: int
    moved_requests: int
    simulated_s: float
    wall_s: float
    cpu_s: float

    @property
    def simulated_s_per_wall_s(self) -> float:
        """How fast the simulation was."""
        return self.simulated_s / self.wall_s

    def as_dict(self) -> dict[str, object]:
        """Return all fields as types of JSON."""
        return asdict(self) | {"simulated_s_per_wall_s": self.simulated_s_per_wall_s}


@dataclass(frozen=True, slots=True)
class Series:
    """A run over time, in bins of BIN_S seconds; NaN for bins without data.

    Attributes:
        time_s: beginning of each bin.
        arrivals_per_s: requests.
        goodput_per_s: good answers, by the time of their arrival.
        streams: requests under way.
        ttft_p50_ms: of the requests that arrived then.
        ttft_p99_ms: likewise.
        tpot_p99_ms: likewise.
        hit_rate: of the prompts started then.
    """

    time_s: FloatArray
    arrivals_per_s: FloatArray
    goodput_per_s: FloatArray
    streams: FloatArray
    ttft_p50_ms: FloatArray
    ttft_p99_ms: FloatArray
    tpot_p99_ms: FloatArray
    hit_rate: FloatArray

    def as_dict(self) -> dict[str, list[float | None]]:
        """Return all fields as types of JSON."""
        return {
            name: [None if np.isnan(each) else round(float(each), 4) for each in values]
            for name, values in asdict(self).items()
        }


class Metrics:
    """Collects the figures of a run.

    Attributes:
        answers: request id, arrival, first token and end in seconds, tokens, moves of each.
        wall_s: seconds that the run took to compute.
        cpu_s: CPU seconds of all processes together.

    Args:
        config: of the run.
        policy: of the routers.
        bursts: of its traffic.
    """

    def __init__(
        self, config: SimulationConfig, policy: RoutingPolicy, bursts: Sequence[Burst]
    ) -> None:
        self.config = config
        self.policy = policy
        self.bursts = bursts
        # (request, arrival, first token, end, tokens, moves) of each answer.
        self.answers: list[tuple[int, float, float, float, int, int]] = []
        # For each interval.
        self._end_s: list[float] = []
        self._num_arrivals: list[int] = []
        self._num_open: list[int] = []
        self._imbalance: list[float] = []
        self._usage: list[Usage] = []
        self.wall_s = self.cpu_s = 0.0

    @property
    def num_answered(self) -> int:
        """Requests that have been answered."""
        return len(self.answers)

    @property
    def usage(self) -> Usage:
        """What all cells have done so far."""
        return self._usage[-1]

    @property
    def num_arrived(self) -> int:
        """Requests that have arrived."""
        return sum(self._num_arrivals)

    def add_arrivals(self, count: int) -> None:
        """Count requests that arrive in an interval."""
        self._num_arrivals.append(count)

    def add_interval(
        self,
        end_s: float,
        answered: Sequence[Answered],
        results: Sequence[IntervalResult],
        num_open: int,
    ) -> None:
        """Add the results of an interval."""
        self.answers += [
            (
                each.submission.request.request_id,
                each.submission.request.arrival_s,
                each.first_token_s,
                each.end_s,
                each.submission.request.num_output_tokens,
                each.submission.num_moves,
            )
            for each in answered
        ]
        self._end_s.append(end_s)
        self._num_open.append(num_open)
        loads = np.array([each.num_requests for result in results for each in result.heartbeats])
        mean = float(loads.mean()) if len(loads) else 0.0
        self._imbalance.append(float(loads.std()) / mean if mean >= 1 else np.nan)
        self._usage.append(sum((result.usage for result in results), start=Usage()))

    # ------------------------------------------------------------------ figures

    def summary(self) -> Summary:
        """Return the run in figures."""
        config, answers = self.config, self._answer_arrays()
        duration_s, warmup_s = config.traffic.duration_s, config.warmup_s
        counted = answers.arrival_s >= warmup_s
        seconds = max(duration_s - warmup_s, 1e-9)
        good = answers.is_good[counted]
        end_s = np.array(self._end_s)
        by_day = (end_s > warmup_s) & (end_s <= duration_s + config.heartbeat_s / 2)
        day = np.flatnonzero(by_day)
        first, last = self._usage[max(day[0] - 1, 0)], self._usage[day[-1]]
        day_s = max(end_s[day[-1]] - end_s[max(day[0] - 1, 0)], config.heartbeat_s)
        # Prompts are looked up until the last one starts.
        looked_up = self._usage[-1].num_tokens_looked_up - first.num_tokens_looked_up
        found = self._usage[-1].num_tokens_found - first.num_tokens_found
        imbalance = np.array(self._imbalance)[by_day]
        return Summary(
            policy=str(self.policy),
            num_requests=self.num_answered,
            goodput_per_s=float(good.sum()) / seconds,
            answered_per_s=float(counted.sum()) / seconds,
            good_share=float(good.mean()) if len(good) else 0.0,
            tokens_per_s=(last.num_tokens - first.num_tokens) / day_s,
            ttft_ms=_percentiles(1e3 * answers.ttft_s[counted]),
            tpot_ms=_percentiles(1e3 * answers.tpot_s[counted]),
            prefix_hit_rate=found / max(looked_up, 1),
            preemptions=self._usage[-1].num_preemptions,
            recomputed_tokens=self._usage[-1].num_recomputed_tokens,
            imbalance=float(np.nanmean(imbalance)) if not np.isnan(imbalance).all() else 0.0,
            peak_streams=max(self._num_open),
            moved_requests=int((answers.num_moves > 0).sum()),
            simulated_s=self._end_s[-1],
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
        )

    def series(self) -> Series:
        """Return the run over time, as long as requests came in."""
        answers = self._answer_arrays()
        num_bins = max(1, int(np.ceil(self.config.traffic.duration_s / BIN_S - 1e-9)))
        bins = np.minimum((answers.arrival_s / BIN_S).astype(np.int64), num_bins - 1)
        by_bin = [np.flatnonzero(bins == each) for each in range(num_bins)]
        end_s, num_open = np.array(self._end_s), np.array(self._num_open, np.float64)
        edges = np.searchsorted(end_s, BIN_S * np.arange(num_bins + 1), side="right")
        edges = np.minimum(edges, len(end_s) - 1)
        looked_up = np.array([each.num_tokens_looked_up for each in self._usage], np.float64)
        found = np.array([each.num_tokens_found for each in self._usage], np.float64)
        arrivals = np.bincount(bins, minlength=num_bins) / BIN_S
        with np.errstate(invalid="ignore", divide="ignore"):
            hit_rate = np.diff(found[edges]) / np.diff(looked_up[edges])
        return Series(
            time_s=BIN_S * np.arange(num_bins, dtype=np.float64),
            arrivals_per_s=arrivals,
            goodput_per_s=np.bincount(bins, answers.is_good, num_bins) / BIN_S,
            streams=num_open[edges[1:]],
            ttft_p50_ms=_quantile_of_each(1e3 * answers.ttft_s, by_bin, 0.5),
            ttft_p99_ms=_quantile_of_each(1e3 * answers.ttft_s, by_bin, 0.99),
            tpot_p99_ms=_quantile_of_each(1e3 * answers.tpot_s, by_bin, 0.99),
            hit_rate=hit_rate,
        )

    def _answer_arrays(self) -> "_Answers":
        columns = np.array(self.answers, np.float64).reshape(-1, 6).T
        _, arrival_s, first_token_s, end_s, num_tokens, num_moves = columns
        ttft_s = first_token_s - arrival_s
        tpot_s = (end_s - first_token_s) / np.maximum(num_tokens - 1, 1)
        is_good = (ttft_s <= self.config.ttft_slo_s) & (tpot_s <= self.config.tpot_slo_s)
        return _Answers(arrival_s, ttft_s, tpot_s, num_moves, is_good)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Arrival, times, moves, and whether the targets were met, of each answer."""

    arrival_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    num_moves: FloatArray
    is_good: npt.NDArray[np.bool_]


def _percentiles(values: FloatArray) -> dict[str, float]:
    if not len(values):
        return {f"p{each}": 0.0 for each in PERCENTILES}
    return {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}


def _quantile_of_each(
    values: FloatArray, groups: Sequence[npt.NDArray[np.int64]], quantile: float
) -> FloatArray:
    return np.array(
        [np.quantile(values[group], quantile) if len(group) else np.nan for group in groups]
    )
