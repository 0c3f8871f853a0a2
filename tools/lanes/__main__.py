"""Runs lanes of tests: python -m tools.lanes {test,deep,nightly,ci}, see --help."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tools.lanes import report
from tools.lanes.again import run_again
from tools.lanes.lane import ROOT, Lane, Outcome
from tools.lanes.plans import PLANS, plan
from tools.lanes.record import Record
from tools.lanes.runner import Runner

INTERRUPTED = 130


def main() -> int:
    """Run the lanes of a plan and return the exit status."""
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
        "--budget-s",
        type=float,
        help="seconds after which deep lanes are stopped, and reported as out of time",
    )
    arguments = parser.parse_args()
    try:
        lanes = chosen(plan(arguments.plan), arguments.lanes)
    except ValueError as error:
        parser.error(f"--lanes: {error}")
    # The first is ignored in what a shell starts in the background, and lanes would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)

    started_at = time.monotonic()
    print(f"{arguments.plan} on {report.machine()}", flush=True)
    try:
        cores = len(os.sched_getaffinity(0))
        record = Record(arguments.record, arguments.plan).write if arguments.record else None
        outcomes = Runner(lanes, cores, arguments.budget_s, on_end=record).run()
        if arguments.plan == "ci":
            outcomes = run_again(outcomes)
    except KeyboardInterrupt:
        print("interrupted")
        return INTERRUPTED
    lines = summary(outcomes, time.monotonic() - started_at)
    print("\n".join(("", *(failures(outcomes)), *lines)))
    return 0 if all(outcome.acceptable for outcome in outcomes) else 1


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
        if outcome.word not in ("FAILED", "unsteady"):
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
        *report.unsteady(outcomes),
        *report.out_of_time(outcomes),
        *report.cases(outcomes),
        *report.skips(outcomes),
    ]


if __name__ == "__main__":
    sys.exit(main())
