"""Which lanes run, and which are only reported since nothing that they depend on has changed."""

import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tools.lanes import machine, report
from tools.lanes.inputs import Inputs, Tree, built, inputs_of
from tools.lanes.lane import ROOT, Lane, Outcome
from tools.lanes.results import (
    Result,
    changes,
    digest_of,
    kind_of,
    path_of,
    plain_command,
    plain_environment,
    stored,
)
from tools.lanes.trace import Trace

# Of what has changed so many names are printed.
MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a lane runs.

    Attributes:
        lane: that it is about.
        why: why it runs; empty if its result is only reported.
        result: that stands for the lane, or None.
    """

    lane: Lane
    why: str
    result: Result | None = None


def decide(
    lanes: Sequence[Lane],
    tree: Tree,
    versions: Mapping[str, str] | None,
    commit: str | None,
    *,
    everything: bool = False,
) -> list[Decision]:
    """Return for each lane whether it runs.

    Args:
        lanes: of the plan.
        tree: the repository as it is.
        versions: of packages of Python; None if there is no .venv.
        commit: in hexadecimal, which draws one lane that runs though its result stands; None
            draws none.
        everything: all run.
    """
    decisions = {lane.name: _decide(lane, tree, versions, everything) for lane in lanes}
    reported = [lane for lane in lanes if not decisions[lane.name].why]
    if reported and commit is not None:
        drawn = reported[int(commit, 16) % len(reported)]
        decisions[drawn.name] = Decision(
            drawn, f"drawn by the commit {commit[:8]}", decisions[drawn.name].result
        )
    # What a lane waits for makes what it runs with.
    for lane in reversed(lanes):
        if decisions[lane.name].why:
            for before in lane.after:
                if not decisions[before].why:
                    each = decisions[before]
                    decisions[before] = Decision(each.lane, f"{lane.name} needs it", each.result)
    return list(decisions.values())


def _decide(
    lane: Lane, tree: Tree, versions: Mapping[str, str] | None, everything: bool
) -> Decision:
    try:
        result = stored(lane)
    except ValueError as error:
        return Decision(lane, str(error))
    if everything:
        return Decision(lane, "all run")
    if result is None:
        of = " for this kind of processor" if lane.arithmetic else ""
        return Decision(lane, f"it has no result{of}")
    changed = changes(result, lane, tree, versions)
    names = ", ".join(changed[:MOST_NAMES])
    more = f" and {len(changed) - MOST_NAMES} more" if len(changed) > MOST_NAMES else ""
    return Decision(lane, f"changed: {names}{more}" if changed else "", result)


def listing(decisions: Sequence[Decision]) -> list[str]:
    """Return a line for each lane: it runs and why, or what is reported of it."""
    width = max((len(each.lane.name) for each in decisions), default=0)
    return [
        f"{each.lane.name:{width}}  "
        + (f"runs      {each.why}" if each.why else f"reported  {_of_result(each.result)}")
        for each in decisions
    ]


def _of_result(result: Result | None) -> str:
    assert result is not None
    skipped = sum(result.skipped.values())
    tests = f"{result.tests:,} tests, {skipped:,} skipped, " if result.tests else ""
    kind = "" if result.kind else ", for every processor"
    return (
        f"{result.digest[:12]}: ok, {tests}{result.wall_s:,.0f} s on {result.date}, "
        f"{result.processor}{kind}"
    )


class Recorder:
    """Stores the results of lanes that have passed, as they end.

    Args:
        tree: the repository before the lanes began.
        installed: packages of Python.
        lanes: of the plan.
    """

    def __init__(self, tree: Tree, installed: machine.Distributions, lanes: Sequence[Lane]) -> None:
        self._tree = tree
        self._installed = installed
        self._after = {lane.name: lane.after for lane in lanes}
        self._commit = commit_of_head()
        self._traces: dict[str, Trace] = {}
        # Of each lane that has passed those that may have built what it read, and still run.
        self._waiting: list[tuple[Outcome, set[str]]] = []
        self._before = built(str(each.relative_to(ROOT)) for each in (ROOT / "build").glob("*/*"))

    def take(self, outcome: Outcome, running: Collection[Lane]) -> None:
        """Take the outcome of a lane that has just ended.

        A lane that read what another built depends on all that the other does. So its result is
        stored when the lanes have ended that ran beside it.

        Args:
            outcome: of the lane.
            running: lanes that have not ended.
        """
        lane = outcome.lane
        if outcome.status is not None and lane.trace.exists():
            self._traces[lane.name] = Trace.read(lane.trace)
        if not outcome.passed:
            path_of(lane.name, kind_of(lane)).unlink(missing_ok=True)
        elif lane.name in self._traces:
            reads = built(self._traces[lane.name].opened)
            self._waiting.append((outcome, {each.name for each in running} if reads else set()))
        for each, beside in list(self._waiting):
            beside.discard(lane.name)
            if not beside:
                self._waiting.remove((each, beside))
                self._store(each)

    def _store(self, outcome: Outcome) -> None:
        lane = outcome.lane
        inputs = self._inputs(lane.name)
        reason = ""
        if not all(self._traces[name].complete for name in self._providers(lane.name, set())):
            reason = "the kernel dropped events of what it opened"
        elif older := inputs.built & self._before:
            reason = f"it read {min(older)}, which was there before the run: take a clean clone"
        elif not inputs.files:
            reason = "it opened no file of the repository"
        elif outcome.skipped:
            reason = "all of its tests were skipped"
        if reason:
            print(f"{lane.name}: its result is not stored: {reason}", flush=True)
            return
        counts = report.counts_of(lane.results)
        versions = {each: self._installed.versions[each] for each in sorted(inputs.distributions)}
        depends = {
            "command": plain_command(lane),
            "environment": plain_environment(lane),
            "kind": kind_of(lane),
            "toolchain": machine.toolchain(),
            "distributions": versions,
            "inputs": {name: self._tree.digest(name) for name in inputs.names(self._tree)},
        }
        Result(
            lane=lane.name,
            digest=digest_of(depends),
            processor=machine.processor(),
            date=datetime.now(UTC).date().isoformat(),
            commit=self._commit,
            tests=counts.tests if counts else 0,
            skipped=dict(counts.skipped) if counts else {},
            cases=tuple(report.cases([outcome])),
            wall_s=round(outcome.wall_s, 1),
            cpu_s=round(outcome.cpu_s, 1),
            **depends,  # type: ignore[arg-type]
        ).write()

    def _providers(self, name: str, seen: set[str]) -> set[str]:
        """Return a lane, those whose files it read, those whose files these read, and so on."""
        seen.add(name)
        read = built(self._traces[name].opened)
        for other, trace in self._traces.items():
            has_built = not read.isdisjoint(built(trace.written))
            if (has_built or other in self._after[name]) and other not in seen:
                self._providers(other, seen)
        return seen

    def _inputs(self, name: str) -> Inputs:
        inputs = Inputs()
        for each in self._providers(name, set()):
            inputs.add(inputs_of(self._traces[each], self._tree, self._installed))
        return inputs


def commit_of_head() -> str:
    """Return the commit that is checked out, in hexadecimal."""
    command = ("git", "rev-parse", "HEAD")
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
