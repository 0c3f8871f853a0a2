"""Tests of PTX run where kernels run as PTX: csrc/ptx_tests.sh makes it and names its folder."""

import os
from pathlib import Path
from typing import Literal

import pytest

from tests.kernels.conftest import cuda_isa, isa, pytest_collection_modifyitems

__all__ = ["cuda_isa", "isa", "pytest_collection_modifyitems"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Literal[True] | None:
    """Leave the tests out where nothing runs as PTX, but for `make lint`, which loads them."""
    runs = os.environ.get("QUIRE_PTX") or config.option.collectonly
    return True if collection_path.match("test_*.py") and not runs else None
