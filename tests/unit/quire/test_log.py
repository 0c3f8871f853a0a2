"""Lines of the log: text for people at a terminal, JSON for programs elsewhere."""

import io
import json
from collections.abc import Iterator
from contextvars import copy_context

import pytest
import structlog

from quire.observe.log import configure, get_logger


class Stderr(io.StringIO):
    """What is written to a terminal, or to something else."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logs of this process go where they went, once a test has ended."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def logged(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, *form: str) -> str:
    """Return the only line that a service writes in a form, if it has one."""
    stderr = Stderr(is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)

    def write() -> None:
        structlog.contextvars.clear_contextvars()
        configure("router", "warning", *form)
        get_logger().info("not_written")
        get_logger().warning("listening", port=50051)

    copy_context().run(write)
    [line] = stderr.getvalue().splitlines()
    return line


def check_json(line: str) -> None:
    fields = json.loads(line)
    assert fields.pop("timestamp").endswith("Z")
    assert fields == {
        "event": "listening",
        "level": "warning",
        "port": 50051,
        "service": "router",
    }


def check_text(line: str, has_colours: bool) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(line)
    assert ("\x1b[" in line) == has_colours
    for word in ("listening", "warning", "port", "50051", "router"):
        assert word in line
    assert has_colours or "port=50051" in line


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("form", [(), ("auto",)])
def test_by_itself_it_is_text_at_a_terminal_alone(
    form: tuple[str, ...], is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = logged(monkeypatch, is_terminal, *form)
    if is_terminal:
        check_text(line, has_colours=True)
    else:
        check_json(line)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_it_is_what_is_asked_for(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_json(logged(monkeypatch, is_terminal, "json"))
    # Escapes of a terminal are nothing for a file.
    check_text(logged(monkeypatch, is_terminal, "text"), has_colours=is_terminal)
