"""The worker's tests on a GPU: a real one, or an emulated one where kernels are built for that."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import torch

from worker_svc import ops
from worker_svc.device.cuda import CudaDevice

if TYPE_CHECKING:
    from tests.emu.emulated_device import EmulatedDevice

IS_EMULATED = "cuda" in ops.available_isas()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Literal[True] | None:
    """Leave out what needs a GPU, but for `make lint`, which loads it.

    csrc/emulated_tests.sh builds kernels for the emulator, and runs it.
    """
    runs = IS_EMULATED or torch.cuda.is_available() or config.option.collectonly
    return True if collection_path.match("test_gpu_*.py") and not runs else None


def needs_float8_caches(gpu: CudaDevice) -> None:
    """Skip on a card that does not serve them."""
    if torch.float8_e4m3fn not in gpu.kv_cache_dtypes:
        pytest.skip("this GPU does not serve float8")


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    """A GPU for the length of a test."""
    from tests.emu.emulated_device import emulated_gpu

    if IS_EMULATED:
        with emulated_gpu() as emulated:
            yield emulated
    else:
        device = CudaDevice.open(0)
        device.start_thread(None)
        yield device


@pytest.fixture
def emulated_gpu(gpu: CudaDevice) -> "EmulatedDevice":
    """A GPU that can be looked into."""
    from tests.emu.emulated_device import EmulatedDevice

    if not isinstance(gpu, EmulatedDevice):
        pytest.skip("only the emulator shows this")
    return gpu
