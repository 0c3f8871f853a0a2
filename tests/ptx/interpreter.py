"""The interpreter of PTX that a build of the kernels for the emulator holds."""

import ctypes
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor

from worker_svc.ops import compiled

# Whether kernels run as the PTX of this folder.
FOLDER = os.environ.get("QUIRE_PTX")
# Orders in which warps and blocks take turns; copies read their source as early or as late as they
# may.
ORDERS = ("forward", "reverse", "shuffled")


class InterpreterError(Exception):
    """A text is no kernel, or a kernel did what PTX does not allow."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a kernel.

    Attributes:
        number: in the kernel.
        performed: how often warps have performed it.
        source: file and line.
        text: of the PTX.
    """

    number: int
    performed: int
    source: str
    text: str


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(compiled._C.__file__)
    for name in ("names", "listing", "report", "leave_out", "replace", "run", "use_warpgroups"):
        getattr(library, f"quire_ptx_{name}").restype = ctypes.c_char_p
    library.quire_ptx_allocated.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.quire_ptx_freed.argtypes = (ctypes.c_void_p,)
    return library


def _checked(text: bytes) -> str:
    if text.startswith(b"error: "):
        raise InterpreterError(text.removeprefix(b"error: ").decode())
    return text.decode()


def names() -> list[str]:
    """Return the mangled names of all kernels."""
    return _checked(_library().quire_ptx_names()).split()


def kernels(pattern: str) -> list[str]:
    """Return the kernels whose mangled names a pattern is found in."""
    return [each for each in names() if re.search(pattern, each)]


def instructions(kernel: str) -> list[Instruction]:
    """Return the instructions of a kernel."""
    found = []
    for line in _checked(_library().quire_ptx_listing(kernel.encode())).splitlines():
        number, performed, source, text = line.split(" ", 3)
        found.append(Instruction(int(number), int(performed), source, text))
    return found


def report() -> dict[str, dict[str, Any]]:
    """Return what each kernel that was launched has done: launches, instructions, accesses."""
    counted: dict[str, dict[str, Any]] = json.loads(_checked(_library().quire_ptx_report()))
    return counted


@contextmanager
def without(kernel: str, instruction: int) -> Iterator[None]:
    """Leave an instruction of a kernel out, for the length of a block."""
    _checked(_library().quire_ptx_leave_out(kernel.encode(), instruction))
    try:
        yield
    finally:
        _checked(_library().quire_ptx_leave_out(kernel.encode(), -1))


def has_warpgroups() -> bool:
    """Return whether kernels are compiled for products of warpgroups, by compute_90a."""
    return _use_warpgroups(True)


@contextmanager
def single_warps() -> Iterator[None]:
    """Let operations choose kernels without products of warpgroups, for the length of a block."""
    _use_warpgroups(False)
    try:
        yield
    finally:
        _use_warpgroups(True)


def _use_warpgroups(are_used: bool) -> bool:
    return _checked(_library().quire_ptx_use_warpgroups(int(are_used))) == "1"


@contextmanager
def replaced(text: str) -> Iterator[None]:
    """Run the kernels of a module in the place of those of the same names, within a block."""
    _checked(_library().quire_ptx_replace(text.encode()))
    try:
        yield
    finally:
        _checked(_library().quire_ptx_replace(b""))


def set_tensors(tensors: Sequence[Tensor]) -> None:
    """Let kernels touch these and what their host code allocates alone; all memory if none.

    Of those that are `unwritten` it stays known what has been written.
    """
    spans = [_span(each) for each in tensors if each.numel() > 0]
    spans = [each for each in spans if each not in _unwritten]
    array = ctypes.c_uint64 * len(spans)
    begins = array(*(begin for begin, _ in spans))
    sizes = array(*(size for _, size in spans))
    _library().quire_ptx_set_tensors(begins, sizes, len(spans))


# Where tensors begin that are device memory, and their bytes.
_unwritten: set[tuple[int, int]] = set()


def _span(tensor: Tensor) -> tuple[int, int]:
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


@contextmanager
def unwritten(tensor: Tensor) -> Iterator[None]:
    """Let a tensor be device memory that nothing has written, for the length of a block."""
    begin, size = _span(tensor)
    _library().quire_ptx_allocated(begin, size)
    _unwritten.add((begin, size))
    try:
        yield
    finally:
        _unwritten.remove((begin, size))
        _library().quire_ptx_freed(begin)


def run(
    text: str,
    arguments: Sequence[int],
    *,
    blocks: int = 1,
    threads: int = 32,
    shared_bytes: int = 0,
    order: str = "forward",
) -> None:
    """Run the only kernel of a module, whose parameters are all 64 bits wide.

    Raises:
        InterpreterError: the text is not understood, or the kernel did what PTX does not allow.
    """
    values = (ctypes.c_uint64 * len(arguments))(*arguments)
    size = ctypes.c_uint64(shared_bytes)
    place = ORDERS.index(order)
    _checked(
        _library().quire_ptx_run(
            text.encode(), values, len(arguments), blocks, threads, size, place
        )
    )


class BoundedKernels:
    """Our kernels, each of which may touch the tensors it is given and nothing else."""

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._kernels, name)
        if not callable(operation):
            return operation

        def run_bounded(*arguments: Any) -> Any:
            flat = [
                each
                for argument in arguments
                for each in (argument if isinstance(argument, list) else [argument])
            ]
            set_tensors([each for each in flat if isinstance(each, Tensor)])
            try:
                return operation(*arguments)
            finally:
                set_tensors([])

        return run_bounded
