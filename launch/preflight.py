"""What would stop a cluster, found before anything starts: in milliseconds, with nothing loaded."""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress

from launch.cluster.config import ClusterConfig, LauncherName
from launch.model_check import check_model
from launch.service_check import check_places, check_services
from quire.contract.addresses import bare_host, join_address
from quire.contract.errors import ConfigError
from worker_svc.isa import check_isa


def check(config: ClusterConfig) -> None:
    """Check that a cluster can be started here, as far as files and the system tell at once.

    Raises:
        ConfigError: it cannot; names the option, and what to do.
    """
    check_ports(config)
    check_services(config)
    if config.launcher == LauncherName.LOCAL:
        check_isa()
        check_model(config)
    # Last, since it makes a directory, and removes a socket that nobody listens on.
    check_places(config)


def check_ports(config: ClusterConfig) -> None:
    """Check that the ports of a cluster are unlike, and free.

    Raises:
        ConfigError: two are the same, or one cannot be listened on.
    """
    taken: dict[tuple[str, int], str] = {}
    for name, host, port in _ports(config):
        place = (bare_host(host), port)
        if place in taken:
            raise ConfigError(f"{name}: must be another than {taken[place]}, got {port} for both")
        taken[place] = name
        _check_free(name, host, port)


def _ports(config: ClusterConfig) -> Iterator[tuple[str, str, int]]:
    """Yield name, host and number of each port that is chosen; 0 is none."""
    if config.port and not config.uds:
        yield "port", config.host, config.port
    if config.grpc_port:
        yield "grpc_port", config.host, config.grpc_port
    if config.control_port:
        yield "control_port", config.host, config.control_port
    if config.admin_port:
        num_workers = config.tensor_parallel_size if config.launcher == LauncherName.LOCAL else 0
        for place in range(2 + num_workers):
            what = ("", " of the scheduler", *(f" of worker {rank}" for rank in range(num_workers)))
            yield f"admin_port{what[place]}", config.admin_host, config.admin_port + place


def _check_free(name: str, host: str, port: int) -> None:
    bare = bare_host(host)
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError, OverflowError):
        raise ConfigError(f"host: must be an address of this machine, got {host}") from None
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        # As servers do: what a closed connection leaves behind is in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
            probe.listen()
        except OSError as error:
            raise ConfigError(_why(name, join_address(host, port), error)) from None


def _why(name: str, address: str, error: OSError) -> str:
    port = address.rpartition(":")[2]
    if error.errno == errno.EADDRINUSE:
        flag = name.partition(" ")[0].replace("_", "-")
        return (
            f"{name}: must be free, got {port}, where another process listens; "
            f"`--{flag} 0` takes a free one"
        )
    if error.errno == errno.EACCES:
        return f"{name}: must be one that this user may listen on, from 1024 on, got {port}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host: must be an address of this machine, got {address.rpartition(':')[0]}"
    return f"{name}: must be one that can be listened on, got {address}: {error.strerror}"
