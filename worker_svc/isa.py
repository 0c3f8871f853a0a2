"""The instruction set that QUIRE_ISA asks for, looked at before torch is loaded."""

import os
from pathlib import Path

from quire.contract.errors import ConfigError

VARIABLE = "QUIRE_ISA"
CPUINFO = Path("/proc/cpuinfo")
# Best first, each with the flag of Linux without which a processor has it not. What else it needs
# csrc/cpu/isa.cpp asks the processor: kernels before 5.3 have no name for bfloat16's instructions.
_FLAGS = {"avx512_bf16": "avx512f", "avx512": "avx512f", "avx2": "avx2", "scalar": ""}


def check_isa(cpuinfo: Path = CPUINFO) -> None:
    """Check that this machine may have the instruction set that is asked for, if one is.

    The kernels refuse, as they are loaded, what only the processor tells.

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
    """Return the instruction sets that a machine may have, best first; all if it does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return tuple(name for name, flag in _FLAGS.items() if not flags or flag in ("", *flags))
