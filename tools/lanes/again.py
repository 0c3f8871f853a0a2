"""Runs tests that failed beside other lanes again, with nothing beside them."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from tools.lanes.lane import OUTPUT, ROOT, Outcome

# More of them are no accident of timing.
MOST_TESTS = 3


def run_again(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Run tests again that failed in lanes which allow it (`Lane.again`), a lane's at a time.

    Such tests start services and meet the limits after which these are taken for dead, which a
    loaded machine can miss. Those that pass now are named at the end of the run (`unsteady`).

    Args:
        outcomes: of all lanes, which have ended.

    Returns:
        The outcomes; where all that failed has passed now, the lane has.
    """
    return [_again(outcome) for outcome in outcomes]


def failed_tests(results: Path) -> list[str]:
    """Return the failed tests as pytest takes them; none if one of them has no such name."""
    if not results.exists():
        return []
    tests = []
    for case in ElementTree.parse(results).iter("testcase"):
        if all(case.find(name) is None for name in ("failure", "error")):
            continue
        path = case.get("classname", "").replace(".", "/") + ".py"
        if not (ROOT / path).is_file():
            return []  # it was not imported, or is of a class
        tests.append(f"{path}::{case.get('name')}")
    return tests


def _again(outcome: Outcome) -> Outcome:
    lane = outcome.lane
    if outcome.passed or outcome.status is None or not lane.again:
        return outcome
    tests = failed_tests(lane.results)
    if not 0 < len(tests) <= MOST_TESTS:
        return outcome
    print(f"{lane.name}: again, alone: {' '.join(tests)}", flush=True)
    with (OUTPUT / f"{lane.name}-again.log").open("wb") as log:
        status = subprocess.run(
            [*lane.again, *tests],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    return replace(outcome, status=0, unsteady=tuple(tests)) if status == 0 else outcome
