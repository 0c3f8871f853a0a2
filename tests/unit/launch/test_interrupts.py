"""Ctrl-C at any moment of a command: one line, and the status of SIGINT."""

from typing import Any, NoReturn

import pytest
from typer.main import get_command

from launch.cli import entry
from launch.cli.main import app

COMMAND: Any = get_command(app)


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def check(ended: "pytest.ExceptionInfo[SystemExit]", capsys: pytest.CaptureFixture[str]) -> None:
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_while_the_program_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_run", interrupt)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    check(ended, capsys)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("serve",), "launch.preflight.check"),
        (("run",), "launch.llm.LLM"),
        (("run", "--target", "127.0.0.1:1"), "launch.conversation.Conversation.hold"),
        (("generate", "--target", "127.0.0.1:1", "a"), "quire.sdk.client.Client.stream"),
    ],
)
def test_while_a_command_runs(
    arguments: tuple[str, ...],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("configure", "log_uncaught"):
        monkeypatch.setattr(f"quire.observe.log.{name}", lambda *_: None)
    monkeypatch.setattr(place, interrupt)
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(list(arguments), prog_name="quire")
    check(ended, capsys)
