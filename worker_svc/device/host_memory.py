"""The free memory of the host."""

from pathlib import Path

from quire.contract.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")

# Files of a control group's limit, use and statistics, and which of these is the cache of files
# that the kernel takes back first; of version 2 and of version 1, inside a container.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def available_memory_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int:
    """Return the bytes this process may still take: of the machine, or of its control group.

    Args:
        cgroup: where control groups are mounted.
        meminfo: the kernel's file of the machine's memory.

    Raises:
        ConfigError: the machine does not report it.
    """
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            "kv_cache_gib: must be set on a machine that does not report its free memory, got none"
        ) from error
    for limit_file, use_file, statistics_file, cache in _LIMITS:
        try:
            limit = int((cgroup / limit_file).read_text())
            used = int((cgroup / use_file).read_text())
        except (OSError, ValueError):
            continue  # No such version here, or it sets no limit ("max").
        # What is in use includes files that were read or written, such as weights. As Kubernetes'
        # working set, this leaves out those of them that are not read again and again.
        used -= min(_statistic(cgroup / statistics_file, cache), used)
        free = min(free, max(limit - used, 0))
    return free


def _statistic(file: Path, name: str) -> int:
    """Return a number of a file of names and numbers; 0 where it is not told."""
    try:
        fields = dict(line.split(" ", 1) for line in file.read_text().splitlines())
        return int(fields[name])
    except (OSError, KeyError, ValueError):
        return 0
