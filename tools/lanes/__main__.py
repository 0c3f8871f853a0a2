"""Runs lanes of tests: python -m tools.lanes {test,deep,nightly,ci,release}, see --help.

The lanes of `ci`, which .ci/run starts, run where something that they depend on has changed since
their stored result; of the others the result is reported. `release` runs nothing and ends with 1
unless each lane of `ci` and `nightly` has a result that stands.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tools.lanes import machine, report, trace
from tools.lanes.gate import Decision, Recorder, commit_of_head, decide, listing
from tools.lanes.inputs import Tree
from tools.lanes.lane import ROOT, Lane, Outcome
from tools.lanes.plans import PLANS, RELEASE, plan
from tools.lanes.record import Record
from tools.lanes.runner import Runner

INTERRUPTED = 130


def main() -> int:
    """Run the lanes of a plan and return the exit status."""
    arguments, lanes = parsed()
    if arguments.list or arguments.plan == RELEASE:
        return list_lanes(lanes, arguments)
    # The first is ignored in what a shell starts in the background, and lanes would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)

    started_at = time.monotonic()
    print(f"{arguments.plan} on {machine.processor()}", flush=True)
    decisions: list[Decision] = []
    observers: list[Callable[[Outcome, Collection[Lane]], None]] = []
    refused = trace.refusal() if arguments.plan in ("ci", "nightly") else "not asked for"
    if not refused:
        tree, installed = Tree(), machine.Distributions()
        observers.append(Recorder(tree, installed, lanes).take)
    elif arguments.plan in ("ci", "nightly"):
        print(f"results are not stored, since this user cannot trace commands: {refused}")
    if arguments.plan == "ci":
        decisions = decided(lanes, arguments)
        print("\n".join(listing(decisions)), flush=True)
        lanes = [each.lane for each in decisions if each.why]
    if arguments.record:
        record = Record(arguments.record, arguments.plan)
        observers.append(lambda outcome, _: record.write(outcome))
    missing = lacking(lanes)
    print("\n".join(missing), end="\n" if missing else "", flush=True)

    def on_end(outcome: Outcome, running: Collection[Lane]) -> None:
        for observe in observers:
            observe(outcome, running)

    cores = len(os.sched_getaffinity(0))
    try:
        run = Runner(lanes, cores, arguments.budget_s, on_end=on_end, traced=not refused)
        outcomes = run.run()
    except KeyboardInterrupt:
        print("interrupted")
        return INTERRUPTED
    lines = summary(outcomes, time.monotonic() - started_at)
    lines += listing([each for each in decisions if not each.why])
    print("\n".join(("", *(failures(outcomes)), *lines)))
    passed = all(outcome.passed for outcome in outcomes)
    # A gate without a tool would be green by luck.
    return 0 if passed and not (arguments.plan == "ci" and missing) else 1


def parsed() -> tuple[argparse.Namespace, list[Lane]]:
    """Return the command line's arguments, and the lanes that they choose."""
    parser = argparse.ArgumentParser(prog="python -m tools.lanes", description=__doc__)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument(
        "--record", type=Path, help="also write each lane's result to this file, when it has ended"
    )
    parser.add_argument(
        "--lanes",
        nargs="+",
        help="those of the plan to run, with what they wait for; all by default",
    )
    parser.add_argument(
        "--all", action="store_true", help="ci runs lanes whose stored result stands, too"
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="run nothing: print what ci would run and why, and what it would report",
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        help="seconds after which all is stopped; what has not ended by then has failed",
    )
    arguments = parser.parse_args()
    try:
        return arguments, chosen(plan(arguments.plan), arguments.lanes)
    except ValueError as error:
        parser.error(f"--lanes: {error}")


def decided(lanes: Sequence[Lane], arguments: argparse.Namespace) -> list[Decision]:
    """Return which lanes run, and why; lanes that are named all do."""
    try:
        versions = machine.Distributions().versions
    except FileNotFoundError as error:
        print(f"{error}; packages are taken to be those of the stored results")
        versions = None
    drawing = commit_of_head() if arguments.plan == "ci" else None
    everything = arguments.all or arguments.lanes is not None
    return decide(lanes, Tree(), versions, drawing, everything=everything)


def list_lanes(lanes: Sequence[Lane], arguments: argparse.Namespace) -> int:
    """Print which lanes would run, and return 1 if a release lacks a result that stands."""
    decisions = decided(lanes, arguments)
    print("\n".join(listing(decisions)))
    return int(arguments.plan == RELEASE and any(each.why for each in decisions))


def lacking(lanes: Sequence[Lane]) -> list[str]:
    """Return a line for each lane that lacks a tool."""
    return [
        f"{lane.name}: skips tests, since this machine lacks {', '.join(lane.missing_tools)}"
        for lane in lanes
        if lane.missing_tools
    ]


def chosen(lanes: Sequence[Lane], names: Collection[str] | None) -> list[Lane]:
    """Return the lanes of these names, and those that they wait for; all for None.

    Raises:
        ValueError: there is no lane of a name.
    """
    if names is None:
        return list(lanes)
    of_name = {lane.name: lane for lane in lanes}
    unknown = [name for name in names if name not in of_name]
    if unknown:
        raise ValueError(f"must be of {', '.join(of_name)}, got {', '.join(unknown)}")
    needed: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in needed:
            needed.add(name)
            left += of_name[name].after
    return [lane for lane in lanes if lane.name in needed]


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what lanes with failures printed, of pytest's from its list of failures on."""
    lines = []
    for outcome in outcomes:
        if outcome.word != "FAILED":
            continue
        lines.append(f"==== {outcome.lane.name} ({outcome.lane.log.relative_to(ROOT)})")
        text = outcome.lane.log.read_text(errors="replace")
        _, heading, rest = text.partition("= FAILURES =")
        lines.append(heading + rest if heading else text)
    return lines


def summary(outcomes: Sequence[Outcome], wall_s: float) -> list[str]:
    """Return the lines at the end of a run."""
    return [
        *report.table(outcomes, wall_s),
        "",
        *report.out_of_time(outcomes),
        *report.cases(outcomes),
        *report.skips(outcomes),
    ]


if __name__ == "__main__":
    sys.exit(main())
