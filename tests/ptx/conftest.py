"""Tests of PTX run where kernels run as PTX: csrc/ptx_tests.sh makes it and names its folder."""

import os

from tests.kernels.conftest import cuda_isa, isa, pytest_collection_modifyitems

__all__ = ["cuda_isa", "isa", "pytest_collection_modifyitems"]

collect_ignore_glob = [] if os.environ.get("QUIRE_PTX") else ["test_*.py"]
