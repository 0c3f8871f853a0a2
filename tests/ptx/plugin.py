"""Writes what kernels have done when a session of pytest ends: pytest -p tests.ptx.plugin.

QUIRE_PTX_REPORT names the folder; each process writes a file of its own.
"""

import json
import os
from pathlib import Path

import pytest

from tests.ptx import interpreter


def pytest_sessionfinish(session: pytest.Session) -> None:
    """See pytest."""
    del session
    folder = Path(os.environ["QUIRE_PTX_REPORT"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.getpid()}.json").write_text(json.dumps(interpreter.report()))
