"""How much memory a worker takes for free: what the machine and its control group leave."""

from pathlib import Path

import pytest

from quire.contract.errors import ConfigError
from worker_svc.device.host_memory import available_memory_bytes

GIB = 2**30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    return file


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text + "\n")
    return directory


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        ({"memory.max": "max", "memory.current": str(GIB)}, 8 * GIB),
        ({"memory.max": str(3 * GIB), "memory.current": str(GIB)}, 2 * GIB),
        ({"memory.max": str(GIB), "memory.current": str(2 * GIB)}, 0),
        (
            # Files that were read count as free, as the kernel takes them back.
            {
                "memory.max": str(6 * GIB),
                "memory.current": str(5 * GIB),
                "memory.stat": f"anon {GIB}\ninactive_file {3 * GIB}\nactive_file {GIB}",
            },
            4 * GIB,
        ),
        (
            # Read a moment later.
            {
                "memory.max": str(GIB),
                "memory.current": str(GIB),
                "memory.stat": f"inactive_file {2 * GIB}",
            },
            GIB,
        ),
        ({"memory.max": str(3 * GIB), "memory.current": str(GIB), "memory.stat": "?"}, 2 * GIB),
        (
            {
                "memory/memory.limit_in_bytes": str(4 * GIB),
                "memory/memory.usage_in_bytes": str(GIB),
            },
            3 * GIB,
        ),
        (
            {
                "memory/memory.limit_in_bytes": str(4 * GIB),
                "memory/memory.usage_in_bytes": str(3 * GIB),
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}",
            },
            3 * GIB,
        ),
        (
            # How version 1 writes that there is no limit.
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": str(GIB),
            },
            8 * GIB,
        ),
    ],
)
def test_free_memory_is_what_the_machine_and_the_control_group_leave(
    tmp_path: Path, meminfo: Path, files: dict[str, str], expected: int
) -> None:
    assert available_memory_bytes(write(tmp_path, files), meminfo) == expected


def test_where_free_memory_is_unknown_the_size_must_be_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be set"):
        available_memory_bytes(tmp_path, tmp_path / "missing")
