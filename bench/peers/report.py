"""A section of docs/benchmarks.md, and pictures, out of what was measured."""

import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.environments import OURS
from bench.peers.record import Key, Results, Row
from bench.peers.statistics import Figures, medians
from bench.peers.workloads import PACES, WORKLOADS

# Around the sections of all processors.
BEGIN, END = "<!-- bench-peers -->\n", "<!-- /bench-peers -->\n"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


# Columns of each workload's table: heading, and the text of medians.
_THROUGHPUT = (
    ("out tokens/s", lambda figures: f"{figures.tokens_per_s:,.1f}"),
    ("TTFT p50, ms", lambda figures: _ms(figures.ttft_p50)),
    ("TPOT p50, ms", lambda figures: _ms(figures.tpot_p50)),
)
_ALONE = (
    ("TTFT, ms", lambda figures: _ms(figures.ttft_p50)),
    ("TPOT, ms", lambda figures: _ms(figures.tpot_p50)),
)
_ARRIVALS = (
    ("good answers/s", lambda figures: f"{figures.goodput:.2f}"),
    (
        "TTFT p50 / p90 / p99, ms",
        lambda figures: " / ".join(
            map(_ms, (figures.ttft_p50, figures.ttft_p90, figures.ttft_p99))
        ),
    ),
    (
        "TPOT p50 / p90 / p99, ms",
        lambda figures: " / ".join(
            map(_ms, (figures.tpot_p50, figures.tpot_p90, figures.tpot_p99))
        ),
    ),
)
_COLUMNS: dict[str, tuple[tuple[str, Callable[[Figures], str]], ...]] = {
    "single": _ALONE,
    "mix": _THROUGHPUT,
    "prefix": _THROUGHPUT,
    "poisson": _ARRIVALS,
    "long": _ALONE,
}

# What counts in each workload.
_PANELS: tuple[tuple[str, str, Callable[[Figures], float]], ...] = (
    ("single", "single stream: ms a token", lambda figures: 1e3 * figures.tpot_p50),
    ("mix", "mix of 64: output tokens/s", lambda figures: figures.tokens_per_s),
    ("prefix", "shared prefix: output tokens/s", lambda figures: figures.tokens_per_s),
    ("poisson", "arrivals: good answers/s", lambda figures: figures.goodput),
    ("long", "long context: s to the first token", lambda figures: figures.ttft_p50),
)
_IN_SECONDS = {"single", "long"}


def beside_best(results: Results, shape: str, dtype: str, workload: str) -> str:
    """Return our speed over the best peer's and the peer's name, "" where either is missing."""
    value = next(value for name, _, value in _PANELS if name == workload)
    speeds = {
        key.engine: value(medians(row.figures for row in rows))
        ** (-1 if workload in _IN_SECONDS else 1)
        for key, rows in results.rows.items()
        if (key.shape, key.dtype, key.workload) == (shape, dtype, workload)
    }
    ours = speeds.pop(OURS, None)
    if ours is None or not speeds:
        return ""
    best = max(speeds, key=lambda name: speeds[name])
    return f"{ours / speeds[best]:.2f} ({best})" if speeds[best] else ""


def roof_share(rows: list[Row]) -> float:
    """Return the median over rounds of the roof's time over an engine's; 0 if there is no roof."""
    return statistics.median(row.roof_s / row.figures.seconds for row in rows)


def section(results: Results) -> str:
    """Return the section: a table for each model, dtype and workload, with what is missing."""
    probes = [row.probe for rows in results.rows.values() for row in rows]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(results.versions.items()))
    bandwidth = _range(probe.bytes_per_s / 1e9 for probe in probes)
    products = _range(probe.flop_per_s / 1e9 for probe in probes)
    load = _range(probe.load for probe in probes)
    lines = [
        f"## Beside other engines: {results.processor}",
        "",
        "`make bench-peers`: random Llamas, the same prompts, greedy, fixed lengths, engines in",
        f"turn; medians over the rounds. {results.num_threads} threads of **{results.processor}**,",
        f"which read {bandwidth} GB/s and multiplied at {products} GFLOP/s in the probes beside",
        f"the runs, at a load of {load}. *Of the roof* is the least time that these allow over the",
        "time taken, a shared prefix being computed once. Quire is a cluster behind its router.",
        "An int8 model's activations are as each engine has them, its cache has two bytes for each",
        "element; the heads of Quire's and vLLM's stay bfloat16.",
        f"Versions: {versions}.",
    ]
    if results.quick:
        lines += ["", "**A quick run, of fewer and shorter requests: its figures mean little.**"]
    kinds = sorted({(key.shape, key.dtype) for key in (*results.rows, *results.missing)})
    lines += [
        "",
        f"Quire's speed over the best peer's ({results.processor}): a token's time alone,",
        "tokens/s, good answers/s, the time to the first token of a long prompt.",
        "",
        "| model | " + " | ".join(WORKLOADS) + " |",
        "|---" * (len(WORKLOADS) + 1) + "|",
    ]
    for shape, dtype in kinds:
        cells = [beside_best(results, shape, dtype, workload) for workload in WORKLOADS]
        lines.append(f"| {shape}, {dtype} | " + " | ".join(cells) + " |")
    for shape, dtype in kinds:
        lines += ["", f"### {shape}, {dtype}"]
        for workload in WORKLOADS:
            lines += _table(results, shape, dtype, workload)
    picture = f"images/{picture_name(results.processor)}"
    lines += ["", f"![Engines beside each other on {results.processor}]({picture})"]
    return "\n".join(lines) + "\n"


def _range(values: Iterator[float]) -> str:
    numbers = sorted(values)
    return f"{numbers[0]:.0f} to {numbers[-1]:.0f}"


def _table(results: Results, shape: str, dtype: str, workload: str) -> list[str]:
    """Return the rows of one table, ours first; none if nothing of it was asked for."""

    def of(keys: "dict[Key, list[Row]] | dict[Key, str]") -> list[Key]:
        asked = [
            key for key in keys if (key.shape, key.dtype, key.workload) == (shape, dtype, workload)
        ]
        return sorted(asked, key=lambda key: (key.engine != OURS, key.engine))

    measured, missing = of(results.rows), of(results.missing)
    if not measured and not missing:
        return []
    title = f"{WORKLOADS[workload].title}; {results.processor}"
    if WORKLOADS[workload].arrives:
        pace = PACES[shape]
        title += (
            f"; {pace.requests_per_s:g} requests/s, good is a TTFT of at most {pace.ttft_s:g} s "
            f"and a TPOT of at most {1e3 * pace.tpot_s:g} ms"
        )
    lines = ["", f"**{workload}**: {title}"]
    if measured:
        columns = _COLUMNS[workload]
        has_roof = not WORKLOADS[workload].arrives
        heads = [name for name, _ in columns] + ["of the roof"] * has_roof + ["memory, GiB"]
        lines += ["", "| engine | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for key in measured:
            rows = results.rows[key]
            middle = medians(row.figures for row in rows)
            cells = [text(middle) for _, text in columns]
            cells += [f"{roof_share(rows):.0%}"] * has_roof
            cells.append(f"{max(row.memory_bytes for row in rows) / 2**30:.1f}")
            lines.append(f"| {key.engine} | " + " | ".join(cells) + " |")
    for key in missing:
        lines += ["", f"Not measured, {key.engine}: {results.missing[key].splitlines()[0]}."]
    return lines


def picture_name(processor: str) -> str:
    """Return the file name of a processor's picture."""
    return f"peers-{'-'.join(re.findall('[a-z0-9]+', processor.lower()))}.svg"


def write(results: Results, page: Path, pictures: Path) -> None:
    """Put the section into a page, in the place of the processor's last one, and draw the picture.

    Sections of other processors stay.

    Args:
        results: of one processor.
        page: Markdown.
        pictures: directory of the picture.

    Raises:
        ValueError: the page has no place for it.
    """
    begin, end = (f"<!-- {slash}{results.processor} -->\n" for slash in ("", "/"))
    text = page.read_text()
    if begin not in text and END in text:
        page.write_text(text.replace(END, f"{begin}{end}\n{END}", 1))
    replace_section(page, begin, end, section(results))
    draw(results, pictures / picture_name(results.processor))


def replace_section(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two marks of a page, in the place of what is there.

    Raises:
        ValueError: the page does not have the marks.
    """
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"page: must have {begin.strip()} and {end.strip()}, got {page}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def draw(results: Results, path: Path) -> None:
    """Draw bars: a row of panels for each model and dtype, a bar for each engine."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    kinds = sorted({(key.shape, key.dtype) for key in results.rows})
    engines = sorted({key.engine for key in results.rows}, key=lambda name: (name != OURS, name))
    figure = Figure(figsize=(3 * len(_PANELS), 2.2 * len(kinds) + 0.6), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(f"{results.processor}, {results.num_threads} threads", fontsize=10)
    for row, kind in zip(
        figure.subplots(len(kinds), len(_PANELS), squeeze=False), kinds, strict=True
    ):
        for axes, (workload, title, value) in zip(row, _PANELS, strict=True):
            axes.set_title(f"{kind[0]} {kind[1]}, {title}", loc="left", fontsize=7)
            for place, engine in enumerate(engines):
                rows = results.rows.get(Key(engine, *kind, workload))
                if rows:
                    height = value(medians(each.figures for each in rows))
                    axes.barh(place, height, color="C1" if engine == OURS else "C0")
            axes.set_yticks(range(len(engines)), engines, fontsize=7)
            axes.invert_yaxis()
            axes.tick_params(axis="x", labelsize=7)
    # The same results give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "quire"}):
        figure.savefig(path, metadata={"Date": None})
