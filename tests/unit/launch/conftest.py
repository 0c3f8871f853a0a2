"""A machine of 4 GiB, and models of which one thing is another."""

from functools import partial
from pathlib import Path

import pytest

from launch import model_check
from quire.contract.engine_options import GIB
from tests.unit.launch.model_makers import MakeModel, write_model


@pytest.fixture
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have 4 GiB of this machine's memory free."""
    monkeypatch.setattr(model_check, "available_memory_bytes", lambda: 4 * GIB)


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Return what makes a copy of the demo model with other values in its config.json."""
    return partial(write_model, tmp_path / "model")
