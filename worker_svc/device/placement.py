"""Arrays that go to a GPU step after step at the same places: views of both sides are made once."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from worker_svc.device.base import Array
from worker_svc.device.cuda import DTYPES, UPLOAD_BUFFERS, CudaDevice, Event, places_of


@dataclass(frozen=True, slots=True)
class _Host:
    """Pinned memory that is copied as it is.

    Attributes:
        memory: [bytes] uint8.
        arrays: views of it, by name.
        sent: comes when the last copy has been made.
    """

    memory: torch.Tensor
    arrays: dict[str, Array]
    sent: Event


class Placement:
    """Memory of a GPU for arrays of fixed shapes, which captured graphs may read.

    Args:
        device: the GPU.
        examples: by name, arrays of the shapes and dtypes.

    Attributes:
        tensors: what was sent last, by name; zeros before.
    """

    def __init__(self, device: CudaDevice, examples: Mapping[str, Array]) -> None:
        self._device = device
        places, num_bytes = places_of(examples)
        self._memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        self.tensors = _views(self._memory, examples, places)
        self._hosts: deque[_Host] = deque()
        for _ in range(UPLOAD_BUFFERS):
            memory = device.pinned((num_bytes,), torch.uint8)
            views = _views(memory, examples, places)
            arrays = {name: view.numpy() for name, view in views.items()}
            self._hosts.append(_Host(memory, arrays, device.new_event()))

    def begin(self) -> dict[str, Array]:
        """Return arrays to fill, of undefined contents, once no copy reads them any more."""
        self._hosts.rotate(-1)
        self._hosts[0].sent.synchronize()
        return self._hosts[0].arrays

    def send(self) -> None:
        """Copy what was filled last, without waiting for the device."""
        host = self._hosts[0]
        self._memory.copy_(host.memory, non_blocking=True)
        host.sent.record(self._device.compute_stream)


def _views(
    memory: torch.Tensor, examples: Mapping[str, Array], places: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    return {
        name: memory[places[name] : places[name] + array.nbytes]
        .view(DTYPES[array.dtype.name])
        .view(array.shape)
        for name, array in examples.items()
    }
