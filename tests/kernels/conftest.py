"""Every kernel test runs once on each instruction set that there is code for."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.kernels.gpu_proxy import KernelsElsewhere
from worker_svc import ops
from worker_svc.ops import compiled

CPU_ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")
# Orders in which the emulator's threads take turns, in a build that has it.
EMULATED = ("cuda_forward", "cuda_reverse", "cuda_shuffled")
ALL_ISAS = (
    *CPU_ISAS,
    *(EMULATED if "cuda" in ops.available_isas() else ()),
    *(("gpu",) if torch.cuda.is_available() else ()),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each case run in one of the emulator's orders, all cases together in all of them.

    In every order each, with QUIRE_ALL_ORDERS set: that takes three times as long. With
    QUIRE_ONE_ISA set each runs on one of the CPU's instruction sets, too.
    """
    rotated = [] if os.environ.get("QUIRE_ALL_ORDERS") else [EMULATED]
    if os.environ.get("QUIRE_ONE_ISA"):
        rotated.append(tuple(each for each in CPU_ISAS if each in ops.available_isas()))
    kept, left_out = [], []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        names = [params[each] for each in ("isa", "cpu_isa", "cuda_isa") if each in params]
        is_chosen = True
        for choices in rotated:
            for name in set(names) & set(choices):
                # Of one case the names differ in this alone.
                case = item.nodeid.replace(name, "")
                is_chosen = choices[zlib.crc32(case.encode()) % len(choices)] == name
        (kept if is_chosen else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force an instruction set, or the emulated GPU, for the length of a test."""
    yield from forced(request.param)


@pytest.fixture(params=CPU_ISAS)
def cpu_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force an instruction set, for a test that would take the emulator minutes."""
    yield from forced(request.param)


NO_CUDA = pytest.param("none", marks=pytest.mark.skip("neither a GPU nor its emulator is here"))


@pytest.fixture(params=[isa for isa in ALL_ISAS if isa not in CPU_ISAS] or [NO_CUDA])
def cuda_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force the emulated GPU or a real one, for an operation that the CPU has not."""
    yield from forced(request.param)


def forced(name: str) -> Iterator[str]:
    """Force what kernels run on until the iterator goes on."""
    if name == "gpu":
        kernels = compiled._C
        compiled._C = KernelsElsewhere(kernels, "cuda")
        yield name
        compiled._C = kernels
        return
    before = ops.isa()
    if name in EMULATED:
        compiled._C.set_emulator_order(EMULATED.index(name), 1)
        ops.set_isa("cuda")
    elif name in ops.available_isas():
        ops.set_isa(name)
    else:
        pytest.skip(f"this machine cannot run {name}")
    assert name.startswith(ops.isa())
    with bounded_if_interpreted():
        yield name
    ops.set_isa(before)


@contextmanager
def bounded_if_interpreted() -> Iterator[None]:
    """Let kernels that run as PTX (QUIRE_PTX) touch the tensors they are given and no others."""
    if not os.environ.get("QUIRE_PTX"):
        yield
        return
    from tests.ptx.interpreter import BoundedKernels

    kernels = compiled._C
    compiled._C = BoundedKernels(kernels)  # type: ignore[assignment]
    try:
        yield
    finally:
        compiled._C = kernels


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    """Numbers of threads to try; the default comes back after the test."""
    yield (1, 2, 3)
    ops.set_num_threads(len(os.sched_getaffinity(0)))
