"""What all tests share: threads that sleep while they wait, and which cases run at which depth."""

import os

# Before torch comes: its threads would spin while they wait, and disturb what shares the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest

from tests import depth


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the cases of this run's depth."""
    items[:], others = depth.select(items)
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases ran, and where the others run."""
    for line in depth.summary():
        terminalreporter.write_line(line)
