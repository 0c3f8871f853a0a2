"""How much memory of the host is free."""

from pathlib import Path

from quire.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def available_memory_bytes() -> int:
    """Return the bytes this process may still take: of the machine, or of its control group.

    Raises:
        ConfigError: the machine does not say.
    """
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            "kv_cache_memory_bytes: must be set, since this machine does not say how much is free"
        ) from error
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            used = int((_CGROUP / "memory.current").read_text())
            free = min(free, max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass  # No control group here sets a limit.
    return free
