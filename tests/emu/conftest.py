"""The worker's tests on a GPU: a real one, or an emulated one where kernels are built for that."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from worker_svc import ops
from worker_svc.device.cuda import CudaDevice

if TYPE_CHECKING:
    from tests.emu.emulated_device import EmulatedDevice

IS_EMULATED = "cuda" in ops.available_isas()
# csrc/emulated_tests.sh builds for the emulator and runs them.
collect_ignore_glob = [] if IS_EMULATED or torch.cuda.is_available() else ["test_gpu_*.py"]


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
