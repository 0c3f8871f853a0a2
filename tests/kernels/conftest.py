"""Every kernel test runs once on each instruction set that there is code for."""

import os
from collections.abc import Iterator

import pytest

from worker_svc import ops

ALL_ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")


@pytest.fixture(params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force an instruction set for the length of a test."""
    name: str = request.param
    if name not in ops.available_isas():
        pytest.skip(f"this machine cannot run {name}")
    before = ops.isa()
    ops.set_isa(name)
    assert ops.isa() == name
    yield name
    ops.set_isa(before)


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    """Numbers of threads to try; the default comes back after the test."""
    yield (1, 2, 3)
    ops.set_num_threads(len(os.sched_getaffinity(0)))
