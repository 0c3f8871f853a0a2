"""What our kernels start in the emulator: in a graph the same whenever it is replayed."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def capturing() -> Iterator[None]:
    """Refuse this thread, for a block, what CUDA refuses it while a graph is captured.

    Calls that allocate, free or wait fail (see stream_capture.h).

    Raises:
        RuntimeError: one was made, and its error passed over: the graph would not be usable.
    """
    library = ctypes.CDLL(compiled._C.__file__)
    library.quire_emulated_end_capture.restype = ctypes.c_char_p
    library.quire_emulated_begin_capture()
    try:
        yield
    finally:
        refused = library.quire_emulated_end_capture()
    if refused is not None:
        raise RuntimeError(f"{refused.decode()} was called while a graph is captured")


def capture(
    operation: Callable[..., Any], args: Sequence[Any], again_args: Sequence[Any] | None = None
) -> tuple[Any, Callable[[], None]]:
    """Run an operation; return its result, and what runs it again, with these arguments or others.

    That raises RuntimeError if it starts other launches than before: a graph's are fixed. Nor may
    it allocate, free or wait: a graph runs none of the operation's host code.
    """
    before = launched()
    result = operation(*args)
    size = launched() - before
    args_of_graph = args if again_args is None else again_args

    def again() -> None:
        before = launched()
        with capturing():
            operation(*args_of_graph)
        if (found := launched() - before) != size:
            raise RuntimeError(
                f"{operation.__name__}: must start what was captured, {dict(size)}, "
                f"got {dict(found)}"
            )

    return result, again
