"""The table of lanes, what was skipped and why, and how many cases ran where."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tools.lanes.lane import Outcome

# Tests print such lines: how many of their cases ran.
CASES = re.compile(r"^cases: .*$", re.MULTILINE)


@dataclass(slots=True)
class Counts:
    """Results of a lane's tests.

    Attributes:
        tests: that ran or were skipped.
        failed: that failed, or whose fixtures did.
        skipped: number by reason.
    """

    tests: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def all_skipped(self) -> bool:
        """Return whether there are tests, and none of them ran."""
        return 0 < self.tests == self.skipped.total()


def counts_of(results: Path) -> Counts | None:
    """Return what pytest wrote, or None if it wrote nothing."""
    if not results.exists():
        return None
    counts = Counts()
    for case in ElementTree.parse(results).iter("testcase"):
        counts.tests += 1
        counts.failed += any(case.find(name) is not None for name in ("failure", "error"))
        skip = case.find("skipped")
        if skip is not None:
            counts.skipped[_reason(skip)] += 1
    return counts


def _reason(skip: ElementTree.Element) -> str:
    """Return why a test was skipped; of a whole file pytest writes that into the text."""
    of_file = re.search(r"'Skipped: (.*)'\)$", skip.text or "")
    return of_file[1] if of_file else skip.get("message", "no reason")


def table(outcomes: Sequence[Outcome], wall_s: float) -> list[str]:
    """Return the lines of a table of lanes, in Markdown as well as for a terminal."""
    rows = [("lane", "result", "tests", "skipped", "wall", "CPU")]
    total = Counts()
    for outcome in outcomes:
        counts = counts_of(outcome.lane.results) if outcome.status is not None else None
        numbers = ("", "")
        if counts is not None:
            numbers = (f"{counts.tests:,}", f"{counts.skipped.total():,}")
            total.tests += counts.tests
            total.skipped += counts.skipped
        times = (f"{outcome.wall_s:,.0f} s", f"{outcome.cpu_s:,.0f} s")
        rows.append((outcome.lane.name, outcome.word, *numbers, *times))
    passed = all(outcome.passed for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    rows.append(
        (
            *("in all", "ok" if passed else "FAILED"),
            *(f"{total.tests:,}", f"{total.skipped.total():,}"),
            *(f"{wall_s:,.0f} s", f"{cpu_s:,.0f} s"),
        )
    )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(_pad(row, widths)) + " |" for row in rows]
    rule = [":" + "-" * (w - 1) if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells of a row: words to the left, numbers to the right."""
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def skips(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each reason for which tests of a lane were skipped."""
    lines = []
    for outcome in outcomes:
        counts = counts_of(outcome.lane.results)
        for reason, number in counts.skipped.most_common() if counts else ():
            lines.append(f"skipped: {number:,} in {outcome.lane.name}: {reason}")
    return lines


def out_of_time(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each lane that the time of the run did not suffice for."""
    return [
        f"out of time: {outcome.lane.name}: "
        + ("never started" if outcome.status is None else f"stopped after {outcome.wall_s:.0f} s")
        for outcome in outcomes
        if outcome.out_of_time
    ]


def cases(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what tests printed of how many of their cases ran, with the lane before it."""
    return [
        f"{line} ({outcome.lane.name})"
        for outcome in outcomes
        if outcome.status is not None
        for line in CASES.findall(outcome.lane.log.read_text(errors="replace"))
    ]
