"""Plants faults in files drawn at random and prints which lanes of CI each would run.

`python -m tools.lanes.planted --seed S` draws files of the kinds that most changes touch, makes one
small change in each, in turn, and puts the file back. `--run FAULT ...` leaves these faults in
their files, all at once, and runs the lanes that none of them named, or `--others N` of these,
drawn by the seed. Whether a fault is one that tests notice is not asked: a lane that was not named
must be green.
"""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    """Draw faults in files that git has, kind by kind, one a file.

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
        kind, found = KINDS[index % len(KINDS)], None
        while found is None:
            name = draw.choice([each for each in names if each.endswith(kind)])
            names.remove(name)
            found = _fault(draw, name)
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


@contextmanager
def planted(some: Iterable[Fault]) -> Iterator[None]:
    """Have faults in their files in the block."""
    sound: dict[Path, str] = {}
    try:
        for fault in some:
            path = ROOT / fault.name
            sound[path] = path.read_text()
            path.write_text(fault.text)
        yield
    finally:
        for path, text in sound.items():
            path.write_text(text)


def main() -> int:
    """Print what each fault would run; run lanes with some of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--run", type=int, nargs="+", help="numbers of the faults to run with")
    parser.add_argument("--others", type=int, help="lanes to run that were not named; else all")
    arguments = parser.parse_args()
    print(f"SEED={arguments.seed}")
    if before := named_lanes():
        print(f"error: without a fault these would run: {', '.join(before)}", file=sys.stderr)
        return 1
    drawn = list(faults(arguments.seed, arguments.count))
    chosen = range(arguments.count) if arguments.run is None else arguments.run
    named: set[str] = set()
    for number in chosen:
        fault = drawn[number]
        with planted([fault]):
            lanes = named_lanes()
        print(f"{number:2} {fault.name}:{fault.line}: {' '.join(lanes) or 'none'}", flush=True)
        named.update(lanes)
    if arguments.run is None:
        return 0
    others = [lane.name for lane in CI if lane.name not in named]
    if arguments.others is not None:
        draw = random.Random(arguments.seed + sum(arguments.run))
        others = draw.sample(others, min(arguments.others, len(others)))
    with planted(drawn[number] for number in chosen):
        return _run(others)


def _run(lanes: list[str]) -> int:
    """Run lanes that no fault named, and return 1 if one is red."""
    print(f"lanes: {' '.join(lanes) or 'none'}", flush=True)
    if not lanes:
        return 0
    # As .ci/run does first: two lanes that find it out of date would make it at the same time.
    subprocess.run(("make", ".venv/.dev"), cwd=ROOT, check=True)
    command = (sys.executable, "-m", "tools.lanes", "ci", "--lanes", *lanes)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
