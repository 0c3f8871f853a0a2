"""Ctrl-C while a cluster starts: one line, the status of SIGINT, and nothing that is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.test_exits import descendants_of

# The `quire` command; a shell has SIGINT ignored in what it runs in the background.
CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from launch.cli.entry import main
main()
"""
SMALL = ("--kv-cache-gib", "0.03125", "--num-threads", "1")
SERVE = ("serve", "--port", "0", "--grpc-port", "0", *SMALL)
RUN = ("run", *SMALL)
CHILD = " --ready-fd "


@dataclass
class Command:
    """A command that runs, and what it writes.

    Attributes:
        process: that it is.
        stderr: where its stderr, and that of its children, is read.
        mark: of the environment of both.
    """

    process: "subprocess.Popen[bytes]"
    stderr: int
    mark: str

    def read_line(self) -> str:
        """Return its next line."""
        line = b""
        while not line.endswith(b"\n") and (some := self._read(1)):
            line += some
        return line.decode().rstrip()

    def read_all(self) -> list[str]:
        """Return its other lines, when it and all its children have ended."""
        text = b""
        while some := self._read(4096):
            text += some
        return text.decode().splitlines()

    def wait_for_child(self) -> None:
        """Return when it has a child."""
        while not any(CHILD in each for each in descendants_of(self.mark)):
            assert self.process.poll() is None, self.read_all()

    def _read(self, size: int) -> bytes:
        try:
            return os.read(self.stderr, size)
        except OSError:  # of a terminal that nobody has open any more
            return b""


@contextmanager
def started(arguments: tuple[str, ...], mark: str, *, at_terminal: bool) -> Iterator[Command]:
    """A command whose stderr is a terminal or a pipe; it is killed on the way out."""
    read_fd, write_fd = os.openpty() if at_terminal else os.pipe()
    name, _, value = mark.partition("=")
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=write_fd,
            env={**os.environ, name: value},
        )
    finally:
        os.close(write_fd)
    try:
        yield Command(process, read_fd, mark)
    finally:
        process.kill()
        process.communicate()
        os.close(read_fd)


def is_progress(line: str) -> bool:
    return line.startswith("[") and " s] " in line


@pytest.mark.parametrize("has_child", [False, True], ids=["first line", "child"])
@pytest.mark.parametrize(
    ("arguments", "at_terminal", "is_first"),
    [
        (SERVE, False, is_progress),
        # Where its stderr is no terminal it starts without a word.
        (RUN, True, lambda line: line == "starting the demo model ..."),
    ],
    ids=["serve", "run"],
)
def test_a_start_that_is_interrupted_is_one_line(
    arguments: tuple[str, ...],
    at_terminal: bool,
    is_first: Callable[[str], bool],
    has_child: bool,
    tmp_path: Path,
) -> None:
    mark = f"QUIRE_TEST_INTERRUPT={tmp_path}"
    with started(arguments, mark, at_terminal=at_terminal) as command:
        first = command.read_line()
        assert is_first(first), first
        if has_child:
            command.wait_for_child()
        command.process.send_signal(signal.SIGINT)
        lines = command.read_all()
        status = command.process.wait()
    assert [line for line in lines if not is_progress(line)] == ["interrupted"]
    assert status == 130
    assert not descendants_of(mark)
