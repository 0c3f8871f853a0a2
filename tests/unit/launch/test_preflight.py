"""What would stop a cluster is found before anything starts."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.config import ClusterConfig, embedded_model
from launch.preflight import check
from quire.contract.errors import ConfigError


def config(**options: Any) -> ClusterConfig:
    ports = {"port": None, "grpc_port": 0}
    return ClusterConfig(model=embedded_model(), **{**ports, **options})


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ["port", "grpc_port", "control_port", "admin_port"])
def test_a_port_in_use_is_refused_by_the_name_of_its_option(name: str, taken: int) -> None:
    flag = name.replace("_", "-")
    message = (
        f"{name}: must be free, got {taken}, where another process listens; "
        f"`--{flag} 0` takes a free one"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check(config(**{name: taken}))


def test_a_port_of_an_admin_page_that_follows_is_checked_too(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"^admin_port of worker 0: must be free, got {taken},"):
        check(config(admin_port=taken - 2))


def test_equal_ports_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    message = f"^grpc_port: must be another than port, got {port} for both$"
    with pytest.raises(ConfigError, match=message):
        check(config(port=port, grpc_port=port))
    # A socket of another kind has no port.
    check(config(port=port, grpc_port=port, uds=str(tmp_path / "socket")))


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "LOCALHOST", "127.0.0.1"])
def test_every_spelling_of_this_machine_is_taken(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^port: must be free, got {port},"):
            check(config(host=host, port=port))
    check(config(host=host, port=port))


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^host: must be an address of this machine, got "):
        check(config(host="192.0.2.1", insecure=True, port=8000))
    with pytest.raises(ConfigError, match=r"^host: must be an address of this machine, got "):
        check(config(host="no.such.host.invalid", insecure=True, port=8000))
