"""A mistake on the command line is one line, in the grammar of all errors."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from launch.cli.entry import main as entry_main
from launch.cli.main import app

COMMAND: Any = get_command(app)
SERVE, LIST = "quire serve", "lists all"


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(list(arguments), prog_name="quire")
    found = capsys.readouterr()
    assert not found.out
    return int(ended.value.code or 0), found.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("serve", "--zzz"),
            "--zzz: must be an option of `quire serve` (`quire serve --help` lists all)",
        ),
        (
            ("serve", "--max-num-seq", "3"),
            "--max-num-seq: must be an option of `quire serve`: did you mean --max-num-seqs? "
            "(`quire serve --help` lists all)",
        ),
        (("serve", "--max-num-seqs"), "--max-num-seqs: must have a value, got none"),
        (("serve", "--max-num-seqs", "many"), "max_num_seqs: must be an integer, got many"),
        (("serve", "--swap-space", "x"), "swap_space: must be a number, got x"),
        (
            ("serve", "--log-level", "loud"),
            "log_level: must be one of debug, info, warning, error, got loud",
        ),
        (
            ("serve", "--enforce-eager=true"),
            "--enforce-eager: must have no value, as a switch has none, got one",
        ),
        (("serve", "--help=all"), "--help: must have no value, as a switch has none, got one"),
        (("resize", "3"), "tensor_parallel_size: must be given, or --worker, got neither"),
        (("serve", "--config", ""), "config: must not be empty, got ''"),
        (("generate",), "prompt: must be given (`quire generate --help` lists all)"),
    ],
)
def test_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, *arguments) == (2, f"error: {line}\n")


def test_a_value_of_the_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_SERVE_MAX_NUM_SEQS", "many")
    line = "max_num_seqs: must be an integer, got many (of QUIRE_SERVE_MAX_NUM_SEQS in the "
    assert error_of(capsys, "serve") == (2, f"error: {line}environment)\n")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("ENFORCE_EAGER", "maybe", "enforce_eager: must be true or false, got 'maybe'"),
        ("ENABLE_LORA", "maybe", "enable-lora: must be true or false, got 'maybe'"),
        (
            "MAX_MODEL_LEN",
            "many",
            "max-model-len: must be an integer, such as 8192, 8k or 8K, got 'many'",
        ),
    ],
)
def test_what_vllm_has_in_the_environment_names_its_variable(
    name: str,
    value: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"QUIRE_SERVE_{name}", value)
    source = f"(of QUIRE_SERVE_{name} in the environment)"
    assert error_of(capsys, "serve") == (2, f"error: {line} {source}\n")


@pytest.mark.parametrize(
    ("line", "word", "completion"),
    [
        ("quire serve --dtype ", 3, ""),
        ("quire serve --enable-lora --max-num-s", 3, "--max-num-seqs"),
        ("quire serve --served-model-name --max-num-s", 3, "--max-num-seqs"),
        ("quire serve --trust-remote-code --max-num-s", 3, "--max-num-seqs"),
        ("quire serve --config none.yaml --max-num-s", 4, "--max-num-seqs"),
    ],
)
def test_a_line_that_is_being_typed_is_completed(
    line: str,
    word: int,
    completion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    variables = {
        "_QUIRE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(word),
        "QUIRE_SERVE_NONSENSE": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        COMMAND.main([], prog_name="quire")
    found = capsys.readouterr()
    assert (ended.value.code or 0, found.err) == (0, "")
    assert completion in found.out.split() or not completion


def test_a_command_that_there_is_not_is_told_with_one_that_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, text = error_of(capsys, "serv")
    assert (status, text.count("\n")) == (2, 1)
    assert "serve" in text


@pytest.mark.parametrize("group", [[], ["bench"], ["keys"]])
def test_a_group_without_a_command_shows_its_help(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(group, prog_name="quire")
    assert ended.value.code == 2
    written = "".join(capsys.readouterr())
    assert written.startswith(("Usage: ", "\n")), written[:80]
    assert "error:" not in written


ENTRY = "import sys; from launch.cli.entry import main; sys.argv[0] = 'quire'; main()"
NOBODY = ("--target", "127.0.0.1:1")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("size",), ("serve", "--help"), ("--version",)])
def test_a_full_disk_is_one_line(arguments: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-c", ENTRY, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
        )
    line = "error: stdout: must take what is written, got No space left on device\n"
    assert (found.returncode, found.stderr) == (1, line)


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        (f"generate a {' '.join(NOBODY)} >&-", 1, "stdout: must be open, got a closed one"),
        (f"run {' '.join(NOBODY)} <&-", 0, ""),
        (
            f"generate \"$(printf '\\377')\" {' '.join(NOBODY)}",
            1,
            "text: must be Unicode, got a surrogate, '\\udcff'",
        ),
        (
            f"run {' '.join(NOBODY)} < <(printf '\\377\\n')",
            1,
            "text: must be Unicode, got a surrogate, '\\udcff'",
        ),
    ],
)
def test_odd_input_and_output_are_one_line(line: str, status: int, error: str) -> None:
    found = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {line}', sys.executable, ENTRY],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (found.returncode, found.stderr) == (status, f"error: {error}\n" if error else "")


def test_what_a_terminal_cannot_write_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("launch.cli.entry._run", lambda: print("größe", flush=True))
    entry_main()
    assert written.getvalue() == b"gr??e\n"
