"""Children of `quire serve`."""

import os
import signal
import subprocess
import sys

import pytest

CHILD = """
import sys
from launch.cluster.process import die_with_parent
die_with_parent(int(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize(("parent_lives", "status"), [(True, 0), (False, -signal.SIGTERM)])
def test_a_child_whose_parent_died_while_it_was_starting_ends(
    parent_lives: bool, status: int
) -> None:
    read_fd, write_fd = os.pipe()
    if not parent_lives:
        os.close(read_fd)
    try:
        command = [sys.executable, "-c", CHILD, str(write_fd)]
        child = subprocess.run(command, pass_fds=[write_fd], check=False)
    finally:
        os.close(write_fd)
        if parent_lives:
            os.close(read_fd)

    assert child.returncode == status
