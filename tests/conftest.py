"""What all tests share: the environment of their processes, and which cases run at which depth."""

import os
import sys

# Before torch comes: its threads would spin while they wait, and disturb what shares the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tests start hundreds of processes. Where Python has been told to keep no bytecode, each of them
# would compile all that it imports, torch among it: most of the time that a service takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from typing import Any

import pytest

from tests import depth

sys.dont_write_bytecode = False
_cases: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the cases of this run's depth."""
    items[:], others = depth.select(items)
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report how many cases there are to the process that started this one (`pytest -n`)."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cases"] = depth.summary()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of `pytest -n` has sent. All have selected the same cases."""
    _cases[:] = getattr(node, "workeroutput", {}).get("cases", _cases)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases ran, and where the others run."""
    for line in _cases or depth.summary():
        terminalreporter.write_line(line)
