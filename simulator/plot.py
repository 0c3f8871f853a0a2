"""A picture of runs over time, if matplotlib is installed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.metrics import Metrics

_PANELS = (
    ("answers under way", ("streams",), False),
    ("good answers a second", ("goodput_per_s",), False),
    ("time to first token, p50 and p99, ms", ("ttft_p50_ms", "ttft_p99_ms"), True),
    ("time per token, p99, ms", ("tpot_p99_ms",), False),
    ("prefix hit rate", ("hit_rate",), False),
)
_STYLES = ("-", ":")


def plot(runs: Sequence[Metrics], path: Path) -> None:
    """Draw runs of one configuration beside each other.

    Args:
        runs: one for each policy.
        path: to write; its ending is the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.2 * len(_PANELS)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(len(_PANELS), 1, sharex=True))
    all_series = [(run, run.series()) for run in runs]
    for axes, (title, names, is_logarithmic) in zip(panels, _PANELS, strict=True):
        axes.set_title(title, loc="left", fontsize=9)
        for number, (run, series) in enumerate(all_series):
            for name, style in zip(names, _STYLES, strict=False):
                label = str(run.policy) if style == "-" else None
                values = getattr(series, name)
                axes.plot(series.time_s, values, style, color=f"C{number}", label=label, lw=1.3)
        if is_logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        for burst in runs[0].bursts:
            axes.axvspan(burst.start_s, burst.end_s, color="0.92", zorder=0)
        for outage in runs[0].config.outages:
            axes.axvline(outage.at_s, color="0.3", lw=0.8, ls="--")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8, loc="lower center")
    panels[-1].set_xlabel("seconds; grey: bursts, dashed: cells killed or drained")
    panels[-1].set_xlim(0, runs[0].config.traffic.duration_s)
    figure.savefig(path)
