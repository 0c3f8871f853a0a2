"""What a lane's result depends on beside the repository: processor, compilers, packages."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from tools.lanes.lane import ROOT

SITE_PACKAGES = Path(f".venv/lib/python3.{sys.version_info.minor}/site-packages")
# Of /proc/cpuinfo's flags those by which kernels, ours and libraries', choose their code.
INSTRUCTION_SETS = re.compile(
    r"(sse|ssse|avx|fma|f16c|bmi|amx|gfni|vaes|vpcl|asimd|sve|sme\d|i8mm|bf16)"
)
# Debian's packages that lanes start, of those that tests are run with: .ci/run installs them.
DEBIAN = ("docker.io", "docker-compose", "prometheus", "libgrpc++-dev", "ruby-grpc", "nodejs")


def processor() -> str:
    """Return the processor's name and the number of cores that may be used."""
    name = _cpuinfo("model name") or "an unknown processor"
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


@cache
def instruction_sets() -> tuple[str, ...]:
    """Return the kind of this processor: its instruction sets, in order of their names."""
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return tuple(sorted({flag for flag in flags if INSTRUCTION_SETS.match(flag)}))


def kind_name(kind: tuple[str, ...]) -> str:
    """Return a short name for a kind of processor, of letters and digits."""
    return hashlib.sha256(" ".join(kind).encode()).hexdigest()[:8]


@cache
def toolchain() -> dict[str, str]:
    """Return the versions of what is not a package of Python, by name."""
    versions = {
        "python": platform.python_version(),
        "c++": _first_line(os.environ.get("CXX", "c++"), "--version"),
        "libc": " ".join(platform.libc_ver()),
    }
    if shutil.which("dpkg-query"):
        command = ("dpkg-query", "--show", "--showformat=${Package} ${Version}\n", *DEBIAN)
        for line in _output(*command).splitlines():
            package, _, version = line.partition(" ")
            if version:
                versions[package] = version
    return versions


class Distributions:
    """Python's packages that are installed in .venv.

    Raises:
        FileNotFoundError: there is no .venv.
    """

    def __init__(self) -> None:
        folder = ROOT / SITE_PACKAGES
        if not folder.is_dir():
            raise FileNotFoundError(f"{SITE_PACKAGES}: is not there, 'make setup' makes it")
        self.versions: dict[str, str] = {}
        self._of_file: dict[str, str] = {}
        for each in metadata.distributions(path=[str(folder)]):
            name = each.metadata["Name"].lower().replace("_", "-")
            self.versions[name] = each.version
            for file in each.files or ():
                self._of_file[str(file)] = name

    def of_file(self, name: str) -> str | None:
        """Return the package that a file of `SITE_PACKAGES` belongs to, or None.

        Args:
            name: of the file, as from that folder.
        """
        return self._of_file.get(name)


def _cpuinfo(field: str) -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return ""
    found = re.search(rf"^{field}\s*: (.*)$", info.read_text(), re.MULTILINE)
    return found[1] if found else ""


def _first_line(*command: str) -> str:
    return (_output(*command).splitlines() or [""])[0]


def _output(*command: str) -> str:
    """Return what a command prints, nothing if it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
