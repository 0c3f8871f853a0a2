"""Runs a command and writes which files below the repository it and its children opened.

`python -m tools.lanes.trace FILE COMMAND...`, as root and on Linux. The command runs in a mount
namespace of its own in which the repository is mounted over itself, and fanotify(7) reports what
is opened through that mount. So lanes that run side by side are kept apart, and no process is
missed, whatever it is linked with.
"""

import ctypes
import json
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.lanes.lane import ROOT

# sched.h, sys/mount.h
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
# linux/fanotify.h
FAN_CLOEXEC, FAN_NONBLOCK, FAN_UNLIMITED_QUEUE, FAN_UNLIMITED_MARKS = 0x1, 0x2, 0x10, 0x20
FAN_MARK_ADD, FAN_MARK_MOUNT = 0x1, 0x10
FAN_MARK_IGNORED_MASK, FAN_MARK_IGNORED_SURV_MODIFY = 0x20, 0x40
FAN_CLOSE_WRITE, FAN_OPEN, FAN_Q_OVERFLOW, FAN_ONDIR = 0x8, 0x20, 0x4000, 0x40000000
AT_FDCWD = -100
EVENT = struct.Struct("=IBBHQii")  # length, version, reserved, header's length, mask, file, pid

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Trace:
    """What a command did to files, named as from the repository's root.

    Attributes:
        opened: files that were opened.
        listed: folders that were opened.
        written: files that were closed after they had been open for writing.
        complete: whether the kernel dropped no event.
    """

    opened: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    complete: bool = True

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Return what `write` wrote."""
        text = json.loads(path.read_text())
        files = {name: set(text[name]) for name in ("opened", "listed", "written")}
        return cls(complete=text["complete"], **files)

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        lists = {k: sorted(v) if isinstance(v, set) else v for k, v in asdict(self).items()}
        path.write_text(json.dumps(lists))


class Watch:
    """Takes the events of a mount into a trace.

    Args:
        mount: where it is mounted.

    Raises:
        OSError: the kernel or this user's rights do not allow it.
    """

    def __init__(self, mount: Path) -> None:
        self.trace = Trace()
        self._mount = mount
        flags = FAN_CLOEXEC | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS
        # A FIFO that no process writes to must not hold the reader up.
        files = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOATIME
        self.descriptor = _check(_libc.fanotify_init(flags, files), "fanotify_init")
        mask = FAN_OPEN | FAN_CLOSE_WRITE | FAN_ONDIR
        _check(self._mark(FAN_MARK_ADD | FAN_MARK_MOUNT, mask, str(mount)), "fanotify_mark")

    def take_events(self) -> None:
        """Take all events that wait."""
        while True:
            try:
                data = os.read(self.descriptor, 1 << 20)
            except BlockingIOError:
                return
            except OSError:  # of a file that cannot be opened any more, such as a device
                continue
            while data:
                length, _, _, _, mask, descriptor, _ = EVENT.unpack_from(data)
                data = data[length:]
                self.trace.complete &= not mask & FAN_Q_OVERFLOW
                if descriptor >= 0:
                    try:
                        self._take(mask, f"/proc/self/fd/{descriptor}")
                    finally:
                        os.close(descriptor)

    def _take(self, mask: int, link: str) -> None:
        path = Path(link).readlink()
        if not path.is_relative_to(self._mount):
            return
        name = str(path.relative_to(self._mount))
        if mask & FAN_CLOSE_WRITE:
            self.trace.written.add(name)
        if mask & FAN_OPEN:
            is_folder = stat.S_ISDIR(Path(link).stat().st_mode)
            (self.trace.listed if is_folder else self.trace.opened).add(name)
            # Each is reported once: compilers open the same headers again and again.
            kept = FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY
            self._mark(FAN_MARK_ADD | kept, FAN_OPEN | (FAN_ONDIR if is_folder else 0), link)

    def _mark(self, flags: int, mask: int, path: str) -> int:
        arguments = (ctypes.c_uint(flags), ctypes.c_uint64(mask), AT_FDCWD, os.fsencode(path))
        return int(_libc.fanotify_mark(self.descriptor, *arguments))


def run(output: Path, command: list[str]) -> int:
    """Run a command, write its trace and return its exit status.

    Args:
        output: file for the trace.
        command: to run.
    """
    _mount_over_itself(ROOT)
    watch = Watch(ROOT)
    process = subprocess.Popen(command)
    # Who interrupts a lane signals its whole session: this process ends behind its command.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(watch.descriptor, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while all(descriptor != ended for descriptor, _ in poll.poll()):
        watch.take_events()
    status = process.wait()
    watch.take_events()
    watch.trace.write(output)
    return 128 - status if status < 0 else status


def refusal() -> str:
    """Return why commands cannot be traced here; empty if they can."""
    command = (sys.executable, "-m", "tools.lanes.trace", os.devnull, "true")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def _mount_over_itself(root: Path) -> None:
    """Give this process a mount namespace in which `root` is a mount of its own."""
    path = os.fsencode(root)
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _check(_libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "mount")
    _check(_libc.mount(path, path, None, MS_BIND | MS_REC, None), "mount")
    os.chdir(root)


def _check(status: int, call: str) -> int:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return status


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
