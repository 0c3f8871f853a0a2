"""The instruction set, threads and streams of the kernels, and measurements of the machine."""

from torch import Tensor

from worker_svc.ops import compiled

Recording = compiled._C.Recording
"""Keeps the CPU operations of the thread between `start()` and `stop()`; `replay()` runs them again
on the same memory, without checks. Their tensors must stay where they are."""


def has_cuda() -> bool:
    """Return whether this build has kernels for GPUs."""
    return hasattr(compiled._C, "follow_streams")


def driver_problem() -> str:
    """Return why the driver of the GPUs cannot run the kernels: it is too old; "" if it can.

    Only in builds with kernels for GPUs.
    """
    return compiled._C.driver_problem()


def launch_problem(device: int) -> str:
    """Return what a GPU answers to the simplest kernel; "" if it runs it.

    Only in builds with kernels for GPUs.
    """
    return compiled._C.launch_problem(device)


def pin_host_memory(tensor: Tensor) -> str:
    """Pin the memory of a contiguous tensor, which GPUs then read and write without the CPU.

    Only in builds with kernels for GPUs. It must be unpinned before the memory is freed.

    Returns:
        The error of CUDA, or "".
    """
    return compiled._C.pin_host_memory(tensor.data_ptr(), tensor.nbytes)


def unpin_host_memory(address: int) -> None:
    """Undo `pin_host_memory` of the tensor at an address."""
    compiled._C.unpin_host_memory(address)


def isa() -> str:
    """Name the instruction set in use."""
    return compiled._C.isa()


def available_isas() -> tuple[str, ...]:
    """Name the instruction sets that this machine can run, best first."""
    return tuple(compiled._C.available_isas())


def set_isa(name: str) -> None:
    """Use another instruction set from now on; QUIRE_ISA in the environment does so at import.

    Must not be called while an operation runs.

    Raises:
        ValueError: This machine cannot run it.
    """
    compiled._C.set_isa(name)


def set_num_threads(num_threads: int) -> None:
    """Set how many threads an operation uses, by default one per usable core.

    Must not be called while an operation runs.
    """
    compiled._C.set_num_threads(num_threads)


def advise_huge_pages(tensor: Tensor) -> None:
    """Ask for huge pages behind a contiguous tensor, best before the tensor is first touched.

    Scattered reads of a large cache then miss the TLB far less. Systems without them ignore it,
    and so does a GPU.
    """
    if tensor.device.type != "cpu":
        return
    compiled._C.advise_huge_pages(tensor)


def stream_read(tensor: Tensor) -> int:
    """Read a contiguous tensor once and return the xor of its words: a yardstick of bandwidth."""
    return compiled._C.stream_read(tensor)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Return the four words that Philox4x32-10 makes of a counter and a key."""
    return tuple(compiled._C.philox4x32(counter, key))
