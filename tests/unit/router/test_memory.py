"""Large blocks of the router's memory go back when they are freed, however large others were."""

import ctypes
import subprocess
import sys

import pytest

from router.memory import THRESHOLD_BYTES

# Prints how many blocks the system gave for one allocation, after a larger one was freed.
SCRIPT = f"""
import ctypes
import sys
from router.memory import return_large_blocks

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
if sys.argv[1] == "returned":
    return_large_blocks()
larger = bytearray({THRESHOLD_BYTES * 16})
del larger
before = libc.mallinfo2().hblks
large = bytearray({THRESHOLD_BYTES * 8})
print(libc.mallinfo2().hblks - before)
"""


def num_of_system(mode: str) -> int:
    command = [sys.executable, "-c", SCRIPT, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or later"
)
def test_a_large_block_is_the_systems_own() -> None:
    assert num_of_system("kept") == 0, "the heap has it, as glibc does if left alone"
    assert num_of_system("returned") == 1
