"""What `quire torture` shows: a table, and all of it as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from launch.torture.comparison import Outcome, Verdict
from launch.torture.suite import Report
from launch.torture.workbench import Result

_CHANGED = (Verdict.CHANGED, Verdict.REPEATED, Verdict.LOST)
_MAX_LISTED = 100
_WIDTH = 120  # where there is no terminal


class ProgressBar:
    """How many questions were answered, scenario by scenario, where there is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description:<24}"),
            BarColumn(),
            TextColumn("{task.completed} answers"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self._task: TaskID | None = None

    def begin(self, scenario: str) -> None:
        """Begin a bar; how many answers there will be shows as the scenario goes."""
        self._end()
        self._task = self._bars.add_task(scenario, total=None)

    def advance(self) -> None:
        """Count an answer."""
        if self._task is not None:
            self._bars.advance(self._task)

    def _end(self) -> None:
        if self._task is not None:
            completed = self._bars.tasks[-1].completed
            self._bars.update(self._task, total=completed or 1, completed=completed or 1)
            self._bars.stop_task(self._task)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._bars.stop()


def print_report(report: Report) -> None:
    """Print what was found of the server, a row for each scenario, and what else was seen."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH
    server, found = report.found.server, report.found
    console.print(f"{server.model} at {report.settings.base_url}, by {server.api.path}")
    console.print(f"  has        {_listed(report, True) or 'no extras'}")
    if missing := _listed(report, False):
        console.print(f"  has not    {missing}")
    if found.fingerprint:
        console.print(f"  system     {found.fingerprint}")
    if not server.extras.seed:
        console.print("  seeds are not obeyed: no sampled question was asked")
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("asked", "equal", "changed", "errors", "first", "logprobs", "largest"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in report.results:
        table.add_row(*_row(result))
    console.print(table)
    for result in report.results:
        lines = [*result.notes, *_examples(result)]
        if lines:
            console.print(f"\n{result.scenario}")
        for line in lines:
            console.print(f"  {line}")


def write_json(path: Path, report: Report) -> None:
    """Write all of it; of outcomes those that differ, the first hundred of each scenario."""
    settings = asdict(report.settings)
    del settings["api_key"]
    content = {
        "settings": settings,
        "model": report.found.server.model,
        "extras": asdict(report.found.server.extras),
        "system_fingerprint": report.found.fingerprint,
        "max_model_len": report.found.max_model_len,
        "scenarios": {result.scenario: _as_dict(result) for result in report.results},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _as_dict(result: Result) -> dict[str, Any]:
    differing = [outcome for outcome in result.outcomes if not outcome.is_same]
    return {
        "asked": len(result.outcomes),
        **{str(verdict): result.count(verdict) for verdict in Verdict},
        "first_position": _first_position(result),
        "logprobs_compared": sum(each.logprobs.num_compared for each in result.outcomes),
        "logprobs_differing": sum(each.logprobs.num_differing for each in result.outcomes),
        "logprobs_largest_difference": _largest(result),
        "notes": result.notes,
        "differing": [asdict(outcome) for outcome in differing[:_MAX_LISTED]],
    }


def _listed(report: Report, is_there: bool) -> str:
    extras = asdict(report.found.server.extras)
    if not report.settings.with_logprobs:
        del extras["logprobs"]
    names = {name: name for name in extras} | {"event_ids": "ids of events"}
    return ", ".join(names[name] for name, has in extras.items() if has == is_there)


def _row(result: Result) -> Sequence[str]:
    position = _first_position(result)
    compared = sum(bool(each.logprobs.num_compared) for each in result.outcomes)
    differing = sum(bool(each.logprobs.num_differing) for each in result.outcomes)
    return (
        result.scenario,
        f"{len(result.outcomes):,}",
        f"{result.count(Verdict.EQUAL):,}",
        f"{result.count(*_CHANGED):,}",
        f"{result.count(Verdict.ERROR):,}",
        "" if position is None else f"{position:,}",
        f"{differing:,} of {compared:,}" if compared else "",
        f"{_largest(result):.1e}" if differing else "",
    )


def _first_position(result: Result) -> int | None:
    positions = [each.position for each in result.outcomes if each.position is not None]
    return min(positions, default=None)


def _largest(result: Result) -> float:
    return max((each.logprobs.largest_difference for each in result.outcomes), default=0.0)


def _examples(result: Result) -> list[str]:
    """Return an example of each kind of trouble."""
    examples: dict[Verdict, Outcome] = {}
    for outcome in result.outcomes:
        if outcome.verdict is not Verdict.EQUAL:
            examples.setdefault(outcome.verdict, outcome)
    return [
        f"{result.count(verdict)} {verdict}, such as {outcome.question}: {outcome.detail}"
        for verdict, outcome in examples.items()
    ]
