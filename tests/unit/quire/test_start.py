"""What refuses a start is said once: to the parent that waits for it, or else in the log."""

import os

import pytest
from structlog.testing import capture_logs

from quire.contract.errors import ConfigError, ModelLoadError, QuireError, UnavailableError
from quire.rpc import CONFIG_ERROR_STATUS, fail

ERRORS = [
    (ConfigError("kv_cache_gib: must hold\na block"), CONFIG_ERROR_STATUS),
    (ModelLoadError("tokenizer.json: must be in /model"), CONFIG_ERROR_STATUS),
    (UnavailableError("cannot listen on 127.0.0.1:1: is it in use?"), 1),
]


@pytest.mark.parametrize(("error", "status"), ERRORS)
def test_a_parent_is_told_and_the_log_has_nothing(error: QuireError, status: int) -> None:
    read_fd, write_fd = os.pipe()
    with capture_logs() as lines, os.fdopen(read_fd) as pipe:
        assert fail(error, write_fd) == status
        # To its end: the pipe is closed.
        assert pipe.read() == f"error {error.message}".replace("\n", " ") + "\n"
    assert lines == []


@pytest.mark.parametrize(("error", "status"), ERRORS)
def test_without_a_parent_the_log_has_one_line(error: QuireError, status: int) -> None:
    with capture_logs() as lines:
        assert fail(error, None) == status
    [line] = lines
    assert (line["log_level"], line["event"]) == ("critical", "service_failed")
    assert line["error"] == error.message
    # Where a configuration is to be mended, where it was read tells nothing.
    assert ("traceback" in line) == (status != CONFIG_ERROR_STATUS)
