"""What was measured, as JSON and as lines."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.peers.probes import Probe
from bench.peers.statistics import Figures, medians


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One cell of the table."""

    engine: str
    shape: str
    dtype: str
    workload: str

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype} {self.engine} {self.workload}"


@dataclass(frozen=True, slots=True)
class Row:
    """One round of one cell.

    Attributes:
        figures: of the run.
        probe: the machine's, mean of before and after.
        roof_s: least time of this machine for these requests; 0 if they arrive over time.
        memory_bytes: of the engine's processes, after the run.
    """

    figures: Figures
    probe: Probe
    roof_s: float
    memory_bytes: int


@dataclass(slots=True)
class Results:
    """All of a run.

    Attributes:
        processor: its name.
        num_threads: that computed.
        quick: whether requests were fewer and shorter, so that figures mean little.
        versions: of the engines, by name.
        rows: rounds of each cell.
        missing: why there is none of a cell.
    """

    processor: str
    num_threads: int
    quick: bool
    versions: dict[str, str] = field(default_factory=dict)
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)


def save(results: Results, path: Path) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "processor": results.processor,
        "num_threads": results.num_threads,
        "quick": results.quick,
        "versions": results.versions,
        "rows": [
            {**asdict(key), "rounds": [asdict(row) for row in rows]}
            for key, rows in results.rows.items()
        ],
        "missing": [{**asdict(key), "reason": why} for key, why in results.missing.items()],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def load(path: Path) -> Results:
    """Read what `save` wrote."""
    document = json.loads(path.read_text())
    rows = {
        _key(entry): [
            Row(
                Figures(**row["figures"]),
                Probe(**row["probe"]),
                row["roof_s"],
                row["memory_bytes"],
            )
            for row in entry["rounds"]
        ]
        for entry in document["rows"]
    }
    missing = {_key(entry): entry["reason"] for entry in document["missing"]}
    return Results(
        document["processor"],
        document["num_threads"],
        document["quick"],
        document["versions"],
        rows,
        missing,
    )


def check_same_kind(earlier: Results, later: Results) -> None:
    """Raise ValueError unless results are of the same machine and of runs as long."""
    kinds = [(run.processor, run.num_threads, run.quick) for run in (earlier, later)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"processor, threads, quick: must be {kinds[0]}, got {kinds[1]}")


def merged(earlier: Results, later: Results) -> Results:
    """Return what was measured in either run; what both have, as the later one has it.

    Raises:
        ValueError: they are of different machines or kinds.
    """
    check_same_kind(earlier, later)
    rows = {key: row for key, row in earlier.rows.items() if key not in later.missing}
    missing = {key: why for key, why in earlier.missing.items() if key not in later.rows}
    return Results(
        later.processor,
        later.num_threads,
        later.quick,
        earlier.versions | later.versions,
        rows | later.rows,
        missing | later.missing,
    )


def _key(entry: dict[str, str]) -> Key:
    return Key(entry["engine"], entry["shape"], entry["dtype"], entry["workload"])


def lines(results: Results) -> Iterator[str]:
    """Yield the medians of each cell, and what is missing."""
    yield f"{results.processor}, {results.num_threads} threads"
    by_work = sorted(results.rows, key=lambda key: (key.shape, key.dtype, key.workload, key.engine))
    for key in by_work:
        rows = results.rows[key]
        middle = medians(row.figures for row in rows)
        yield (
            f"{key!s:44} {middle.tokens_per_s:8.1f} tokens/s  TTFT {1e3 * middle.ttft_p50:8.1f} ms "
            f" TPOT {1e3 * middle.tpot_p50:7.2f} ms  ({len(rows)} rounds)"
        )
    for key, reason in results.missing.items():
        yield f"{key!s:44} not measured: {reason}"
