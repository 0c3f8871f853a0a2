"""Variables that begin with QUIRE_: those of others do no harm, and a typing error is told."""

from typing import Any

from typer.main import get_command

from launch.cli.environment import tidy
from launch.cli.main import app

COMMAND: Any = get_command(app)


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
