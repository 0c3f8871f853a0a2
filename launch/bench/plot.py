"""A picture of a run: its latencies by percentile, and its throughput second by second."""

from pathlib import Path
from typing import Any

import numpy as np

from launch.bench.metrics import Metrics

_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}


def plot(metrics: Metrics, percentiles: tuple[float, ...], path: Path) -> None:
    """Draw a run.

    Args:
        metrics: of the run.
        percentiles: to mark, each in [0, 100].
        path: to write; its ending is the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    latencies, tokens, requests = figure.subplots(3, 1, height_ratios=(2, 1, 1))
    _draw_latencies(latencies, metrics, percentiles)
    seconds = np.arange(len(metrics.timeline.tokens) + 1)
    tokens.set_title("output tokens in each second", loc="left", fontsize=9)
    tokens.stairs(metrics.timeline.tokens, seconds, fill=True, color="C0")
    requests.set_title("requests under way in each second", loc="left", fontsize=9)
    requests.stairs(metrics.timeline.requests, seconds, fill=True, color="C1")
    requests.sharex(tokens)
    requests.set_xlabel("seconds since the first request")
    for axes in (tokens, requests):
        axes.set_xlim(0, max(1, len(seconds) - 1))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.savefig(path)


def _draw_latencies(axes: Any, metrics: Metrics, percentiles: tuple[float, ...]) -> None:
    """Draw each latency by percentile, on a scale of milliseconds that has room for all."""
    axes.set_title("milliseconds by percentile", loc="left", fontsize=9)
    places = np.linspace(0, 100, 1001)
    for name, title in _NAMES.items():
        values = metrics.latencies[name] * 1e3
        if len(values):
            axes.plot(places, np.percentile(values, places), label=title, lw=1.3)
    for each in percentiles:
        axes.axvline(each, color="0.5", lw=0.8, ls="--")
    # Tokens that were read together have no time between them.
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(
            fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(_NAMES), frameon=False
        )
