"""Plants faults in files drawn at random and prints which lanes of CI each would run.

`python -m tools.lanes.planted --seed S` draws files of the kinds that most changes touch, makes one
small change in each, in turn, and puts the file back. `--run FAULT` leaves that fault in the file
and runs lanes: all of them, or with `--others N` so many that were not named, drawn by the seed.
Whether a fault is one that tests notice is not asked: a lane that was not named must be green.
"""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tools.lanes import machine
from tools.lanes.gate import decide
from tools.lanes.inputs import Tree
from tools.lanes.lane import ROOT
from tools.lanes.plans import CI

# At least three of each kind.
KINDS = (".py", ".proto", ".h", ".md", ".yaml")
# What a fault does to the first match in a line, of the first of these that matches.
CHANGES = (
    (re.compile(r" == "), " != "),
    (re.compile(r" < "), " <= "),
    (re.compile(r" \+ "), " - "),
    (re.compile(r"\bnot "), ""),
    (re.compile(r"\bTrue\b"), "False"),
    (re.compile(r"\b(\d+)\b"), r"\g<1>1"),
    (re.compile(r"\]\(([\w/.-]+\.md)"), r"](no-\1"),
    (re.compile(r"\b([a-z]{4,})\b"), r"\1x"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one line.

    Attributes:
        name: of the file.
        line: its number, from 1.
        text: of the file with the fault.
    """

    name: str
    line: int
    text: str


def faults(seed: int, count: int) -> Iterator[Fault]:
    """Draw faults in files that git has, kind by kind.

    Args:
        seed: of the drawing.
        count: of faults.
    """
    draw = random.Random(seed)
    listed = subprocess.run(
        ("git", "ls-files"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = listed.stdout.splitlines()
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        while (found := _fault(draw, draw.choice([n for n in names if n.endswith(kind)]))) is None:
            pass
        yield found


def _fault(draw: random.Random, name: str) -> Fault | None:
    lines = (ROOT / name).read_text().splitlines(keepends=True)
    for number in draw.sample(range(len(lines)), len(lines)):
        for pattern, other in CHANGES:
            changed = pattern.sub(other, lines[number], count=1)
            if changed != lines[number] and not lines[number].lstrip().startswith(("#", "//")):
                text = "".join((*lines[:number], changed, *lines[number + 1 :]))
                return Fault(name, number + 1, text)
    return None


def named_lanes() -> list[str]:
    """Return the lanes that the tree as it is would run."""
    decisions = decide(CI, Tree(), machine.Distributions().versions, None)
    return [each.lane.name for each in decisions if each.why]


def main() -> int:
    """Print what each fault would run; run lanes with one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--run", type=int, help="number of the fault to run lanes with")
    parser.add_argument("--others", type=int, help="lanes to run that were not named; else all")
    arguments = parser.parse_args()
    print(f"SEED={arguments.seed}")
    if before := named_lanes():
        print(f"error: without a fault these would run: {', '.join(before)}", file=sys.stderr)
        return 1
    for number, fault in enumerate(faults(arguments.seed, arguments.count)):
        if arguments.run not in (None, number):
            continue
        path = ROOT / fault.name
        sound = path.read_text()
        try:
            path.write_text(fault.text)
            named = named_lanes()
            print(f"{number:2} {fault.name}:{fault.line}: {' '.join(named) or 'none'}", flush=True)
            if arguments.run is not None:
                return _run(named, arguments.others, random.Random(arguments.seed + number))
        finally:
            path.write_text(sound)
    return 0


def _run(named: list[str], others: int | None, draw: random.Random) -> int:
    """Run lanes with the fault, and return 1 if one is red that was not named."""
    left = [lane.name for lane in CI if lane.name not in named]
    lanes = draw.sample(left, min(others, len(left))) if others is not None else []
    print(f"lanes: {' '.join(lanes) or 'all'}", flush=True)
    options = ("--lanes", *lanes) if lanes else ("--all",)
    command = (sys.executable, "-m", "tools.lanes", "ci", *options)
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout)
    red = set(re.findall(r"^\[ *\d+ s\] (\S+): (?:FAILED|out of time|not run)", run.stdout, re.M))
    surprising = sorted(red.difference(named))
    print(f"red: {' '.join(sorted(red)) or 'none'}; not named: {' '.join(surprising) or 'none'}")
    return int(bool(surprising))


if __name__ == "__main__":
    sys.exit(main())
