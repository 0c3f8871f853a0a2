"""How the router's memory goes back to the system."""

import ctypes

# Of glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
# What glibc begins with.
THRESHOLD_BYTES = 128 << 10


def return_large_blocks() -> None:
    """Let each large block go back to the system when it is freed. Elsewhere than glibc: nothing.

    glibc raises the size from which it does so to that of the largest block that was freed. From
    then on bodies and answers of megabytes lie in a heap whose end some small block holds, and a
    router that has nothing to do keeps the memory of its busiest moment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, THRESHOLD_BYTES)
