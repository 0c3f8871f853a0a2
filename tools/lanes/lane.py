"""What a lane is, and what came of it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "lanes"
PYTHON = str(ROOT / ".venv/bin/python")
PYTEST = (PYTHON, "-m", "pytest", "-q")
# A lane that computes gets what others leave: this limit, in seconds, is for a test that hangs.
HANGS_AFTER_S = 1200


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A command that runs beside others.

    Attributes:
        name: in the table, and of its files in build/lanes.
        command: run in the repository's root.
        environment: variables beside the runner's own.
        waits: it mostly waits for processes that it started, and goes before lanes that compute.
        after: lanes that must have passed before this one begins.
        arithmetic: it runs compiled arithmetic: what comes of it may depend on the processor's
            instruction sets, and a stored result stands for processors that have the same.
        tools: commands without which its tests would be skipped, beside those of every machine.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    waits: bool = False
    after: tuple[str, ...] = ()
    arithmetic: bool = True
    tools: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """Return the file that holds what the command prints."""
        return OUTPUT / f"{self.name}.log"

    @property
    def results(self) -> Path:
        """Return the file that holds pytest's results, of a lane that runs pytest."""
        return OUTPUT / f"{self.name}.xml"

    @property
    def trace(self) -> Path:
        """Return the file that says which files the command opened, where it is traced."""
        return OUTPUT / f"{self.name}.trace.json"

    @property
    def missing_tools(self) -> list[str]:
        """Return those of its tools that this machine lacks."""
        return [tool for tool in self.tools if shutil.which(tool) is None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a lane ended.

    Attributes:
        lane: that ended.
        status: exit status of the command; None if the command did not start.
        wall_s: seconds from start to end.
        cpu_s: seconds of CPU time of the command and of all processes that it waited for.
        out_of_time: it did not start or was stopped since the time of the whole run was over.
        skipped: it has tests, and every one of them was skipped.
    """

    lane: Lane
    status: int | None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    out_of_time: bool = False
    skipped: bool = False

    @property
    def passed(self) -> bool:
        """Return whether the command ran and succeeded."""
        return self.status == 0 and not self.out_of_time

    @property
    def word(self) -> str:
        """Return what the table says of it."""
        if self.out_of_time:
            return "out of time"
        if self.status is None:
            return "not run"
        if not self.passed:
            return "FAILED"
        return "skipped" if self.skipped else "ok"


def pytest_lane(
    name: str,
    *arguments: str,
    waits: bool = False,
    arithmetic: bool = True,
    tools: tuple[str, ...] = (),
    **environment: str,
) -> Lane:
    """Return a lane that runs pytest."""
    command = (*PYTEST, *pytest_options(name), *arguments)
    return Lane(name, command, environment, waits, arithmetic=arithmetic, tools=tools)


def script_lane(name: str, script: str, *, arithmetic: bool = True, **environment: str) -> Lane:
    """Return a lane that runs a script which hands its arguments to pytest."""
    command = (str(ROOT / script), "-q", *pytest_options(name))
    return Lane(name, command, environment, arithmetic=arithmetic)


def make_lane(name: str, target: str, **options: Any) -> Lane:
    """Return a lane that runs a target of make which runs pytest."""
    own = f"-o timeout={HANGS_AFTER_S} --junitxml={OUTPUT / name}.xml"
    results = {"PYTEST_ADDOPTS": own}
    return Lane(name, ("make", target), results, **options)


def pytest_options(name: str) -> tuple[str, ...]:
    """Return pytest's options that every lane has."""
    return (
        "--durations=15",
        "-o",
        f"timeout={HANGS_AFTER_S}",
        f"--junitxml={OUTPUT / name}.xml",
    )
