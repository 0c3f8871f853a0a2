"""What our kernels start in the emulator: in a graph the same whenever it is replayed."""

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from worker_svc.ops import compiled


def launched() -> Counter[str]:
    """Return the launches of our kernels by this thread so far, and the blocks of all of them."""
    library = ctypes.CDLL(compiled._C.__file__)
    counts = (library.quire_emulated_launches, library.quire_emulated_blocks)
    for count in counts:
        count.restype = ctypes.c_uint64
    launches, blocks = (int(count()) for count in counts)
    return Counter(launches=launches, blocks=blocks)


def capture(operation: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Callable[[], None]]:
    """Run an operation; return its result, and what runs it again.

    That raises RuntimeError if it starts other launches than before: a graph's are fixed.
    """
    before = launched()
    result = operation(*args)
    size = launched() - before

    def again() -> None:
        before = launched()
        operation(*args)
        if (found := launched() - before) != size:
            raise RuntimeError(
                f"{operation.__name__}: must start what was captured, {dict(size)}, "
                f"got {dict(found)}"
            )

    return result, again
