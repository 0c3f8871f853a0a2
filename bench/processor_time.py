"""Processor time of other processes, finer than the clock ticks of /proc/PID/stat."""

from pathlib import Path


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process's threads, to the nanosecond unlike that of /proc/stat."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9
