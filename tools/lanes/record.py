"""A file with the last result of each lane of a plan, which is committed beside the sources."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tools.lanes import machine, report
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
        # Of the sources as they are now: a lane may end an hour after it has begun.
        self._commit = _commit(path)

    def write(self, outcome: Outcome) -> None:
        """Replace the section of a lane, unless it did not run to its end.

        Args:
            outcome: of the lane, which has just ended.
        """
        if outcome.status is None or outcome.out_of_time:
            return
        sections = self._sections()
        sections[outcome.lane.name] = self._section(outcome)
        head = (
            f"# Last results of `make test-{self._plan}`\n\n"
            f"Written by it, lane by lane; `make test-{self._plan} LANES=...` runs some of them.\n"
        )
        body = "".join(f"\n## {name}\n\n{text}\n" for name, text in sections.items())
        new = self._path.with_suffix(".new")
        new.write_text(head + body)
        new.replace(self._path)

    def _sections(self) -> dict[str, str]:
        """Return the text of each section by the name of its lane."""
        if not self._path.exists():
            return {}
        _, *parts = re.split(r"^## (.+)$", self._path.read_text(), flags=re.MULTILINE)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    def _section(self, outcome: Outcome) -> str:
        counts = report.counts_of(outcome.lane.results)
        tests = ""
        if counts is not None:
            tests = f", {counts.tests:,} tests, {counts.skipped.total():,} skipped"
        lines = [
            f"**{outcome.word}**{tests}, {outcome.wall_s:,.0f} s, of CPU time "
            f"{outcome.cpu_s:,.0f} s; {datetime.now(UTC).date().isoformat()}, {self._commit}, "
            f"{machine.processor()}."
        ]
        items = [*report.cases([outcome]), *report.skips([outcome])]
        if items:
            lines += ["", *(f"- {item}" for item in items)]
        return "\n".join(lines)


def _commit(path: Path) -> str:
    """Return the commit of the sources, and whether any but a file differ from it.

    Args:
        path: of the file.
    """

    def git(*arguments: str) -> str:
        command = ("git", *arguments)
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return process.stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ".", f":(exclude){path.absolute()}")
        return f"commit {git('rev-parse', '--short', 'HEAD')}{', changed' if changes else ''}"
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
