"""What a container may do, and what can be reached of it: as little as it needs."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.compose.stack import (
    CONTAINER_USER,
    HANGS_AFTER_S,
    SERVICES,
    Stack,
    addresses,
    docker,
    inspect,
)

# Workers also await each other, at ports of the range that compose.yaml sets.
PORTS = {"router": {50051, 8000, 9090}, "scheduler": {50052, 9090}, "worker": {50053, 9090}}
RANK_PORTS = range(60000, 61000)
NETWORKS = {"router": {"front", "back"}, "scheduler": {"back", "cell"}, "worker": {"cell"}}


def kind(service: str) -> str:
    return service.partition("-")[0]


def open_ports(address: str) -> set[int]:
    """Return every TCP port at which something accepts connections."""
    found = set()
    for port in range(1, 65536):
        with socket.socket() as probe:
            probe.settimeout(2)
            if probe.connect_ex((address, port)) == 0:
                found.add(port)
    return found


def python_in(container: str, program: str) -> "subprocess.CompletedProcess[str]":
    command = ["docker", "exec", container, "python3", "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS_AFTER_S, check=False
    )


@pytest.mark.parametrize("service", SERVICES)
def test_a_process_has_no_privileges(stack: Stack, service: str) -> None:
    container = stack.container(service)
    pid = inspect(container)["State"]["Pid"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"] == status["Gid"] == [str(CONTAINER_USER)] * 4
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities][0], 16) == 0, capabilities
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2"], "the engine's filter of system calls is off"


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_can_be_written_but_tmp(stack: Stack, service: str) -> None:
    container = stack.container(service)
    for directory in ("/", "/etc/quire/tls", "/opt/quire", "/model", "/var/tmp"):
        written = python_in(container, f"open('{directory}/written', 'w')")
        assert written.returncode == 1, f"{directory} can be written"
        assert "Read-only file system" in written.stderr, written.stderr
    assert python_in(container, "open('/tmp/written', 'w')").returncode == 0


@pytest.mark.parametrize("service", SERVICES)
def test_no_port_is_open_but_those_declared(stack: Stack, service: str) -> None:
    container = stack.container(service)
    for address in addresses(container).values():
        found = open_ports(address)
        assert found >= PORTS[kind(service)]
        rest = found - PORTS[kind(service)]
        assert kind(service) == "worker" or not rest
        assert all(port in RANK_PORTS for port in rest), rest


def test_networks_are_apart_and_only_the_router_is_published(stack: Stack) -> None:
    for service in SERVICES:
        container = stack.container(service)
        names = {name.removeprefix(f"{stack.name}_") for name in addresses(container)}
        assert names == NETWORKS[kind(service)]
        ports = {"50051/tcp": stack.port, "8000/tcp": stack.http_port}
        published = {f"{port} -> 127.0.0.1:{here}" for port, here in ports.items()}
        lines = set(docker("port", container).splitlines())
        assert lines == (published if service == "router" else set())
    for name, internal in (("front", "false"), ("back", "true"), ("cell", "true")):
        network = f"{stack.name}_{name}"
        assert docker("network", "inspect", "--format", "{{.Internal}}", network) == internal


def test_a_router_does_not_reach_the_workers(stack: Stack) -> None:
    (address,) = addresses(stack.container("worker-0")).values()
    connect = "import socket; socket.create_connection(('{}', 50053), 2)"
    router = stack.container("router")
    assert "not known" in python_in(router, connect.format("worker-0")).stderr
    assert python_in(router, connect.format(address)).returncode == 1
    assert python_in(stack.container("scheduler"), connect.format(address)).returncode == 0


@pytest.mark.parametrize("service", SERVICES)
def test_logs_are_json_and_hold_no_secret(stack: Stack, service: str) -> None:
    container = stack.container(service)
    done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
    lines = (done.stdout + done.stderr).splitlines()
    assert lines
    for line in lines:
        assert json.loads(line).keys() >= {"event", "level", "timestamp"}, line
        assert stack.api_key not in line
    everything = json.dumps(inspect(container))
    assert stack.api_key not in everything


def test_the_limits_of_the_file_are_those_of_the_containers(stack: Stack) -> None:
    for service in SERVICES:
        host = inspect(stack.container(service))["HostConfig"]
        assert host["NanoCpus"] > 0
        assert host["Memory"] > 0
        assert host["PidsLimit"] > 0
        assert host["LogConfig"]["Config"].keys() == {"max-size", "max-file"}
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
