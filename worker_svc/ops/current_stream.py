"""The stream on which a thread's work of torch goes, for kernels that follow it.

Torch alone knows it. Kernels ask before each launch: functions of torch's compiled code answer
without making an object, but under names that it does not promise to keep.
"""

from collections.abc import Callable
from typing import Any

import torch


def stream_source() -> Callable[[], int]:
    """Return a function that returns the calling thread's stream on its device, a cudaStream_t.

    It returns 0 before torch has begun work on a GPU, as where kernels are emulated.
    """
    cuda: Any = torch.cuda  # not annotated
    raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    own_device: Any = getattr(torch._C, "_cuda_getDevice", None)

    def private() -> int:
        return int(raw_stream(own_device())) if cuda.is_initialized() else 0

    def public() -> int:
        return int(cuda.current_stream().cuda_stream) if cuda.is_initialized() else 0

    return public if raw_stream is None or own_device is None else private
