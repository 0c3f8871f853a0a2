"""Variables that begin with QUIRE_: those of others do no harm, and a typing error is told."""

import os
from typing import Any

import pytest
from typer.main import get_command

from launch.cli.environment import PREFIX, report, tidy
from launch.cli.main import app
from tests.unit.launch.test_command_options import served

__all__ = ["served"]

COMMAND: Any = get_command(app)
LINK = "tcp://10.0.0.1:50051"
PASSED_OVER = f"note: QUIRE_ROUTER_PORT: passed over, {LINK} is Kubernetes' link\n"


def test_what_kubernetes_sets_is_no_option() -> None:
    link = "tcp://10.96.0.7:50051"
    others = {
        "QUIRE_ROUTER_SERVICE_HOST": "10.96.0.7",
        "QUIRE_ROUTER_SERVICE_PORT": "50051",
        "QUIRE_ROUTER_SERVICE_PORT_GRPC": "50051",
        "QUIRE_ROUTER_PORT_50051_TCP": link,
        "QUIRE_ROUTER_PORT_50051_TCP_ADDR": "10.96.0.7",
        "QUIRE_API_PORT": link,
    }
    variables = {"QUIRE_ROUTER_PORT": link, **others}
    assert tidy(COMMAND, variables) == [
        f"QUIRE_ROUTER_PORT: passed over, {link} is Kubernetes' link"
    ]
    assert variables == others


def test_options_and_what_is_read_elsewhere_are_known() -> None:
    variables = {
        "QUIRE_ROUTER_PORT": "50051",
        "QUIRE_SERVE_MAX_NUM_SEQS": "3",
        "QUIRE_BENCH_SERVE_MODEL": "a",
        "QUIRE_API_KEY": "a",
        "QUIRE_API_KEYS": "a",
        "QUIRE_TLS_DIR": "a",
        "QUIRE_INSECURE": "1",
        "QUIRE_ISA": "avx2",
        "QUIRE_TEST_DEPTH": "deep",
        "OTHER": "a",
    }
    before = dict(variables)
    assert tidy(COMMAND, variables) == []
    assert variables == before


def test_what_nothing_reads_is_told_with_what_may_be_meant() -> None:
    found = tidy(COMMAND, {"QUIRE_SERVE_MAX_NUM_SEQ": "3", "QUIRE_VERSION": "1"})
    assert found == [
        "QUIRE_SERVE_MAX_NUM_SEQ: no option reads this variable, "
        "did you mean QUIRE_SERVE_MAX_NUM_SEQS?",
        "QUIRE_VERSION: no option reads this variable",
    ]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets variables where there is no other that begins with QUIRE_."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    return monkeypatch


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command as a shell does; return its status, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(list(arguments), prog_name="quire")
    return int(ended.value.code or 0), *capsys.readouterr()


def test_a_router_starts_beside_a_service_of_its_name(
    environment: pytest.MonkeyPatch, served: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("QUIRE_ROUTER_PORT", LINK)
    environment.setenv("QUIRE_ROUTER_SERVICE_PORT", "50051")
    assert run(capsys, "router") == (0, "", PASSED_OVER)
    assert [config.port for config in served] == [50051], "the default, and no link"
    # A number is the option's, as ever.
    environment.setenv("QUIRE_ROUTER_PORT", "7")
    assert run(capsys, "router") == (0, "", "")
    assert served[-1].port == 7


def test_what_is_odd_is_told_once_beside_the_help(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(capsys, "router", "--help")
    assert (plain[0], plain[2]) == (0, "")
    environment.setenv("QUIRE_ROUTER_PORT", LINK)
    environment.setenv("QUIRE_FOO", "bar")
    foo = "note: QUIRE_FOO: no option reads this variable\n"
    assert run(capsys, "router", "--help") == (0, plain[1], foo + PASSED_OVER)


@pytest.mark.parametrize("version", ["1.2.3", "1", "true", "0", ""])
def test_a_version_of_ones_own_is_no_option(
    version: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run(capsys, "router", "--help")
    environment.setenv("QUIRE_VERSION", version)
    note = "note: QUIRE_VERSION: no option reads this variable\n"
    assert run(capsys, "router", "--help") == (0, plain[1], note)


def test_a_child_leaves_the_notes_to_its_parent(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_child, notes in ((True, ""), (False, PASSED_OVER)):
        environment.setenv("QUIRE_ROUTER_PORT", LINK)
        report(COMMAND, is_child=is_child)
        assert "QUIRE_ROUTER_PORT" not in os.environ, "what is no option is none to either"
        assert capsys.readouterr() == ("", notes)
