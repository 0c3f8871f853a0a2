"""A configuration that a service refuses is said once: by itself, or by the parent it is told."""

import json

import pytest
from typer.testing import CliRunner

from launch.cli.main import app
from quire.rpc import CONFIG_ERROR_STATUS

REFUSAL = "port: must be in [0, 65535], got 70000"
READY_FD = 99

Announced = list[tuple[int | None, str]]


def ignore(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Announced:
    """What parents of services would have been told at the end of a start."""
    lines: Announced = []

    def announce(ready_fd: int | None, line: str) -> None:
        lines.append((ready_fd, line))

    monkeypatch.setattr("quire.rpc.announce", announce)
    for name in ("quire.rpc.report", "launch.cluster.process.die_with_parent", "os.nice"):
        monkeypatch.setattr(name, ignore)
    for name in ("configure", "log_uncaught"):
        monkeypatch.setattr(f"quire.observe.log.{name}", ignore)
    return lines


def test_a_child_tells_its_parent_and_prints_nothing(announced: Announced) -> None:
    arguments = ["router", "--ready-fd", str(READY_FD)]
    result = CliRunner().invoke(app, arguments, input=json.dumps({"port": 70000}))
    assert (result.exit_code, result.output) == (CONFIG_ERROR_STATUS, "")
    assert announced == [(READY_FD, f"error {REFUSAL}")]


def test_a_service_of_a_shell_prints_one_line(announced: Announced) -> None:
    result = CliRunner().invoke(app, ["router", "--port", "70000"])
    assert (result.exit_code, result.output) == (CONFIG_ERROR_STATUS, f"error: {REFUSAL}\n")
    assert [ready_fd for ready_fd, _ in announced] == [None], "which goes to nobody"
