"""The instruction set that QUIRE_ISA asks for, looked at before torch is loaded."""

import os
from pathlib import Path

from quire.contract.errors import ConfigError

VARIABLE = "QUIRE_ISA"
CPUINFO = Path("/proc/cpuinfo")
# Best first, by the flags of Linux that each needs beside those of the next; csrc/cpu/isa.cpp asks
# the processor itself.
_FLAGS = {
    "avx512_bf16": {"avx512_bf16", "avx512_vnni"},
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "avx2": {"avx2", "fma", "f16c"},
    "scalar": set[str](),
}


def check_isa(cpuinfo: Path = CPUINFO) -> None:
    """Check that this machine has the instruction set that is asked for, if one is.

    Args:
        cpuinfo: what Linux says of the processor.

    Raises:
        ConfigError: it has not; names the variable and what can be asked for.
    """
    name, choices = os.environ.get(VARIABLE), isas_of(cpuinfo)
    if name and name not in choices:
        raise ConfigError(
            f"{VARIABLE}: must be one of {', '.join(choices)} on this machine, got {name!r}"
        )


def isas_of(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return the instruction sets that a machine can run, best first; all if it does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    if not flags:
        return tuple(_FLAGS)
    found: list[str] = []
    for name, needed in reversed(_FLAGS.items()):
        if not needed <= {*flags}:
            break
        found.insert(0, name)
    return tuple(found)
