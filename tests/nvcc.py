"""Where CUDA's compiler and its tools are."""

import shutil
import sysconfig
from pathlib import Path

# In the order in which they are looked through: what pyproject.toml pins, whose code tests count;
# PATH; and where it is often installed without being on PATH.
PINNED = Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin"
OTHERS = (None, "/usr/local/cuda/bin")


def find_tool(name: str) -> str | None:
    """Return the path of a tool of CUDA's, or None where it is not installed."""
    if (PINNED / name).is_file():
        return str(PINNED / name)
    return next((found for path in OTHERS if (found := shutil.which(name, path=path))), None)


def find_nvcc() -> str | None:
    """Return the path of the compiler, or None where it is not installed."""
    return find_tool("nvcc")
