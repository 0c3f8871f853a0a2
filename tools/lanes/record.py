"""A file with the last result of each lane of a plan, which is committed beside the sources."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tools.lanes import report
from tools.lanes.lane import ROOT, Outcome


class Record:
    """Has a section for each lane that was ever run; a run changes those of its own lanes.

    So lanes may be run one at a time, each with the commit it was run on.

    Args:
        path: of the file, which need not exist.
        plan: name of the plan.
    """

    def __init__(self, path: Path, plan: str) -> None:
        self._path = path
        self._plan = plan

    def write(self, outcome: Outcome) -> None:
        """Replace the section of a lane.

        Args:
            outcome: of the lane, which has just ended.
        """
        sections = self._sections()
        sections[outcome.lane.name] = _section(outcome)
        head = (
            f"# Last results of `make test-{self._plan}`\n\n"
            f"Written by it, lane by lane; `make test-{self._plan} LANES=...` runs some of them.\n"
        )
        body = "".join(f"\n## {name}\n\n{text}\n" for name, text in sections.items())
        self._path.write_text(head + body)

    def _sections(self) -> dict[str, str]:
        """Return the text of each section by the name of its lane."""
        if not self._path.exists():
            return {}
        _, *parts = re.split(r"^## (.+)$", self._path.read_text(), flags=re.MULTILINE)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _section(outcome: Outcome) -> str:
    counts = report.counts_of(outcome.lane.results)
    tests = (
        "" if counts is None else f", {counts.tests:,} tests, {counts.skipped.total():,} skipped"
    )
    lines = [
        f"**{outcome.word}**{tests}, {outcome.wall_s:,.0f} s, of CPU time {outcome.cpu_s:,.0f} s; "
        f"{datetime.now(UTC).date().isoformat()}, commit {_commit()}, {report.machine()}."
    ]
    items = [*report.cases([outcome]), *report.skips([outcome])]
    if items:
        lines += ["", *(f"- {item}" for item in items)]
    return "\n".join(lines)


def _commit() -> str:
    """Return the commit of the sources, and whether they differ from it."""
    command = ("git", "describe", "--always", "--dirty=, changed", "--exclude=*")
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
