"""Help that fits a terminal of 80 columns, with whole names; completion that a shell can use."""

import re
from typing import Any

import pytest
from typer.main import get_command

from launch.cli.help import QuireCommand
from launch.cli.main import app
from launch.cluster.config import ClusterConfig
from launch.model_source import ModelSource
from quire.contract.options import options_of, panel_of

COMMAND: Any = get_command(app)
COMMANDS = sorted(name for name, each in COMMAND.commands.items() if isinstance(each, QuireCommand))
COLUMNS = 80
FLAG = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*(?![\w-])")
CONSTANT = re.compile(
    r"default: (None|True|False|''|\"\"|\[\]|\(\)|\{\}|<|inf\b|\w+Path\(|[A-Z]\w*\.[A-Z_]+|\])"
)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "dumb")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(list(arguments), prog_name="quire")
    found = capsys.readouterr()
    assert ended.value.code == 0, found.err
    return found.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_names_every_option_whole(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, command, "--help").splitlines()
    assert not [line for line in lines if len(line) > COLUMNS]
    # An option begins a line, after two spaces; what is said of it stands further in.
    heads = [line for line in lines if line.startswith("  -")]
    names = {name for line in heads for name in FLAG.findall(line)}
    for each in COMMAND.commands[command].params:
        if each.param_type_name == "option" and not each.hidden:
            assert names.issuperset((*each.opts, *each.secondary_opts)), each.name


@pytest.mark.parametrize("command", COMMANDS)
def test_no_default_is_shown_as_python_writes_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(shown(capsys, command, "--help").split())
    assert not CONSTANT.search(text), CONSTANT.search(text)


def test_options_of_serve_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    headings = {"Arguments", "Options"} | {
        panel_of(group, name)
        for group in (ModelSource, ClusterConfig)
        for name, each in options_of(group).items()
        if not each.internal
    }
    assert {"Cluster", "Model", "HTTP", "Memory and steps"} < headings
    lines = shown(capsys, "serve", "--help").splitlines()
    found = [line.removesuffix(":") for line in lines if re.fullmatch(r"[A-Z][^.]*:", line)]
    assert sorted(found) == sorted(headings)


@pytest.mark.parametrize(
    ("words", "place", "completions"),
    [
        ("quire se", 1, {"serve"}),
        ("quire ", 1, {"serve", "run", "generate", "router", "bench"}),
        ("quire serve --max-num-s", 2, {"--max-num-seqs"}),
        ("quire serve --tensor", 2, {"--tensor-parallel-size"}),
        ("quire bench se", 2, {"serve"}),
    ],
)
def test_a_shell_is_told_what_a_word_may_become(
    words: str,
    place: int,
    completions: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_QUIRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(place))
    found = set(shown(capsys).split())
    assert found >= completions
    prefix = words.split(" ")[place]
    assert all(each.startswith(prefix) for each in found)


def test_a_shell_is_told_how_to_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_QUIRE_COMPLETE", "source_bash")
    script = shown(capsys)
    assert "_QUIRE_COMPLETE=complete_bash" in script
    assert re.search(r"^complete .* quire$", script, re.MULTILINE)
