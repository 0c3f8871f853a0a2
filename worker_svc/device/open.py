"""From the name of a device to the device."""

import torch

from quire.observe.log import get_logger
from worker_svc import ops
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.device.cuda import CudaDevice

log = get_logger()


def open_device(name: str) -> Device:
    """Return a device by its name.

    Args:
        name: "cpu", "cuda" or "cuda:N"; "auto" or "auto:N" for that GPU if there is one, else the
            CPU.

    Raises:
        ConfigError: there is no usable device of this name.
    """
    kind, _, index = name.partition(":")
    if kind == "auto" and torch.cuda.device_count() > 0 and not ops.has_cuda():
        log.warning("gpu_unused", reason="the kernels were built without CUDA; install with nvcc")
        kind = "cpu"
    if kind == "cpu" or (kind == "auto" and torch.cuda.device_count() == 0):
        return CpuDevice()
    return CudaDevice.open(int(index or 0))
