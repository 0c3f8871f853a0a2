"""The project of deploy/compose.yaml on a real engine, with certificates and keys of its own."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from quire import AsyncClient

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
QUIRE = str(Path(sys.executable).parent / "quire")
IMAGE_TAG = os.environ.get("IMAGE_TAG", "dev")
SERVICES = ("router", "scheduler", "worker-0", "worker-1")
CONTAINER_USER = 10001
# Of a wait that only what hangs outlasts: on a busy machine a start takes minutes.
HANGS_AFTER_S = 600.0


def run(
    *command: str, environment: dict[str, str] | None = None, timeout_s: float = HANGS_AFTER_S
) -> str:
    """Return the standard output of a command that must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | (environment or {}),
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def docker(*arguments: str) -> str:
    return run("docker", *arguments).strip()


def compose_command() -> list[str] | None:
    """Return how compose is called here, or None if it is not installed."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def why_not(tag: str) -> str | None:
    """Return why the containers cannot run here, or None if they can."""
    if shutil.which("docker") is None:
        return "containers: the command docker is missing (apt-get install docker.io)"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        return "containers: no Docker engine answers (start dockerd)"
    if compose_command() is None:
        return "containers: compose is missing (apt-get install docker-compose)"
    if os.geteuid() != 0:
        return "containers: only root gives files to their user and kills their processes"
    for name in ("router", "scheduler", "worker"):
        image = f"quire-{name}:{tag}"
        command = ["docker", "image", "inspect", image]
        found = subprocess.run(command, capture_output=True, check=False)
        if found.returncode != 0:
            return f"containers: there is no image {image} (make images)"
    return None


def free_ports(number: int) -> int:
    """Return the first of so many neighbouring ports of the loopback that are free now."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        taken = [socket.socket() for _ in range(number)]
        try:
            for offset, each in enumerate(taken):
                each.bind(("127.0.0.1", first + offset))
        except (OSError, OverflowError):
            continue
        else:
            return first
        finally:
            for each in taken:
                each.close()
    raise AssertionError("no free ports")


class Stack:
    """A compose project: one cell, its router, and what joins them.

    Args:
        name: of the project.
        directory: for certificates and keys.
        files: of deploy/, what the project consists of.
        settings: further variables of the compose files.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        files: tuple[str, ...] = ("compose.yaml",),
        settings: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.certificates = directory / "certs"
        self.keys = directory / "keys"
        # The next is for a second router; the two after it are for HTTP.
        self.port = free_ports(4)
        self.http_port = self.port + 2
        self.api_key = ""
        self._files = files
        self._own_settings = settings or {}
        self._settings = {
            "COMPOSE_PROJECT_NAME": name,
            "QUIRE_CERTS": str(self.certificates),
            "QUIRE_KEYS": str(self.keys),
            "QUIRE_PUBLISH": f"127.0.0.1:{self.port}",
            "QUIRE_PUBLISH_HTTP": f"127.0.0.1:{self.http_port}",
            **self._own_settings,
        }

    def joining_cell(self) -> "Stack":
        """Return a project of its own, not started, with a further cell for the routers of this."""
        return Stack(
            f"{self.name}-b",
            self.certificates.parent,
            ("compose.yaml", "compose.join.yaml"),
            {**self._own_settings, "QUIRE_JOIN": f"{self.name}_back"},
        )

    # ---------------------------------------------------------------- credentials

    def make_credentials(self) -> None:
        """Make an authority, a certificate for each role, and a key, as README.md describes."""
        self.certs()
        self.keys.mkdir()
        self.api_key = self.add_key("tests")
        # Once: what replaces these files later belongs to the same user.
        roles = (self.certificates / role for role in ("router", "scheduler", "worker"))
        for directory in (*roles, self.keys):
            for each in (directory, *directory.iterdir()):
                os.chown(each, CONTAINER_USER, CONTAINER_USER)

    def certs(self, *options: str) -> None:
        run(QUIRE, "certs", str(self.certificates), *options)

    def add_key(self, name: str) -> str:
        """Return a new key of the router."""
        return run(QUIRE, "keys", "add", name, "--file", str(self.keys / "keys.jsonl")).strip()

    def revoke_key(self, name: str) -> None:
        run(QUIRE, "keys", "revoke", name, "--file", str(self.keys / "keys.jsonl"))

    def client(self, *, port: int | None = None, api_key: str | None = None) -> AsyncClient:
        """Return a client of a router, by its published port, as it would be on another host."""
        return AsyncClient(
            f"127.0.0.1:{port or self.port}",
            tls_dir=str(self.certificates / "client"),
            api_key=self.api_key if api_key is None else api_key,
        )

    # ---------------------------------------------------------------- containers

    def compose(self, *arguments: str, settings: dict[str, str] | None = None) -> str:
        command = compose_command()
        assert command is not None, "why_not() was asked"
        files = [part for name in self._files for part in ("-f", str(DEPLOY / name))]
        return run(*command, *files, *arguments, environment=settings or self._settings)

    def up(self, *services: str, wait: bool = True) -> None:
        """Create and start services, all if none is named; return when they are healthy."""
        self.compose("up", "-d", "--no-recreate", *services)
        if wait:
            self.wait_healthy()

    def change_images(self, tag: str) -> None:
        """Replace every container by one of the images of this tag, as an upgrade does."""
        self.compose("up", "-d", settings=self._settings | {"IMAGE_TAG": tag})

    def scale_routers(self, number: int) -> None:
        """Have one router or two, the second at the next port; return when they are healthy."""
        more = number - 1
        with_range = self._settings | {
            "QUIRE_PUBLISH": f"127.0.0.1:{self.port}-{self.port + more}",
            "QUIRE_PUBLISH_HTTP": f"127.0.0.1:{self.http_port}-{self.http_port + more}",
        }
        self.compose(
            *("up", "-d", "--no-recreate", "--scale", f"router={number}", "router"),
            settings=with_range,
        )
        self.wait_healthy()

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def containers(self, service: str = "") -> list[str]:
        """Return the ids of a service's containers, of all services if none is named."""
        label = f"label=com.docker.compose.project={self.name}"
        which = ["--filter", f"label=com.docker.compose.service={service}"] if service else []
        return docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label, *which).split()

    def container(self, service: str) -> str:
        """Return the id of the only container of a service."""
        (found,) = self.containers(service)
        return found

    def wait_healthy(self, timeout_s: float = HANGS_AFTER_S) -> None:
        """Return when every container that should run reports that it is healthy."""
        deadline = time.monotonic() + timeout_s
        while True:
            states = {each["Name"]: each["State"] for each in map(inspect, self.containers())}
            unwell = [
                name
                for name, state in states.items()
                if not state["Running"] or state["Health"]["Status"] != "healthy"
            ]
            if states and not unwell:
                return
            assert time.monotonic() < deadline, f"not healthy after {timeout_s:g} s: {unwell}"
            time.sleep(0.2)

    def logs(self, lines: int = 40) -> str:
        """Return the last lines of every container."""
        parts = []
        for container in self.containers():
            done = subprocess.run(
                ["docker", "logs", "--tail", str(lines), container],
                capture_output=True,
                text=True,
                check=False,
            )
            state = inspect(container)
            status = {
                key: value for key, value in state["State"].items() if key not in ("Health", "Pid")
            }
            parts.append(f"---- {state['Name']} {json.dumps(status)}\n{done.stdout}{done.stderr}")
        return "\n".join(parts)


def inspect_all(*containers: str) -> list[dict[str, Any]]:
    """Return what the engine knows of each of several containers."""
    return list(json.loads(docker("inspect", *containers)))


def inspect(container: str) -> dict[str, Any]:
    """Return what the engine knows of a container."""
    (found,) = inspect_all(container)
    return found


def addresses(container: str) -> dict[str, str]:
    """Return a container's address in each network."""
    networks = inspect(container)["NetworkSettings"]["Networks"]
    return {name: network["IPAddress"] for name, network in networks.items()}
