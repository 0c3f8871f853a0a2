"""Containers to disturb: two routers before two cells of deploy/compose.yaml."""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.load import until_connected
from tests.chaos.paths import Page
from tests.compose.stack import IMAGE_TAG, ROOT, Stack, docker, inspect_all, why_not

LOGS = ROOT / "build/chaos-compose.log"
_LOG_LINES = 20_000
_NUM_ROUTERS = 2
# The cells of the two projects.
_NUM_CELLS = 2
# Of compose.yaml.
_ADMIN_PORT = 9090
# As in scenario `cells`: 24 streams leave room for few of the blocks that nobody uses.
_SETTINGS = {"QUIRE_SCHEDULER_OPTIONS": "--kv-cache-gib 0.03125"}
_POLL_S = 1.0
# What the engine says of a container that ended by itself.
_GONE = ("is not running", "is not paused", "is restarting")
# What it says of one that it has not stopped within its time, on a machine whose cores are taken:
# that container runs on.
_NOT_PAUSED = "unable to freeze"
_PAUSE_ATTEMPTS = 20
_PAUSE_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Container:
    """A container that may be disturbed.

    Attributes:
        role: "router", "scheduler" or "worker".
        label: shown in the report.
        id: of the engine; stays as often as the container starts again.
    """

    role: str
    label: str
    id: str

    async def kill(self) -> None:
        """Run `docker kill`, then `docker start`.

        Most versions of the engine take `docker kill` for an operator's wish, as they do `docker
        stop`, and leave the container down in spite of its restart policy. So this starts it
        again, as an operator would; `docker start` changes nothing about one that runs.

        Raises:
            ProcessLookupError: it had ended by itself, as for the others; it runs again.
        """
        try:
            await self._run("kill")
        finally:
            await self._run("start")

    async def freeze(self) -> None:
        """Run `docker pause`, a few times if the engine does not manage to.

        Raises:
            ProcessLookupError: it has ended by itself.
        """
        for left in reversed(range(_PAUSE_ATTEMPTS)):
            try:
                await self._run("pause")
            except AssertionError as error:
                if not left or _NOT_PAUSED not in str(error):
                    raise
                await asyncio.sleep(_PAUSE_AGAIN_S)
            else:
                return

    async def thaw(self) -> None:
        """Run `docker unpause`."""
        await self._run("unpause")

    async def _run(self, command: str) -> None:
        try:
            await asyncio.to_thread(docker, command, self.id)
        except AssertionError as error:
            if any(each in str(error) for each in _GONE):
                raise ProcessLookupError(f"{self.label}: {error}") from error
            raise


def _service_of(state: Mapping[str, Any]) -> str:
    return str(state["Config"]["Labels"]["com.docker.compose.service"])


def containers_in(states: Sequence[Mapping[str, Any]]) -> list[Container]:
    """Return the containers of several projects, by name, so that a seed chooses the same ones.

    Args:
        states: what `docker inspect` prints of each.
    """
    found = []
    for state in states:
        service = _service_of(state)
        label = state["Name"].lstrip("/")
        found.append(Container(service.partition("-")[0], label, state["Id"]))
    return sorted(found, key=lambda each: each.label)


def pages_in(states: Sequence[Mapping[str, Any]]) -> list[Page]:
    """Return where the routers and schedulers that run now show their counters.

    Args:
        states: what `docker inspect` prints of each container.
    """
    pages = []
    for state in states:
        service = _service_of(state)
        networks = state["NetworkSettings"]["Networks"].values()
        addresses = [each["IPAddress"] for each in networks if each["IPAddress"]]
        if state["State"]["Running"] and addresses and not service.startswith("worker"):
            pages.append(Page(state["State"]["Pid"], f"{addresses[0]}:{_ADMIN_PORT}"))
    return pages


class Restarts:
    """Counts how often the engine started a container again, which is after it ended by itself."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self.by_service: Counter[str] = Counter()

    def note(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Add what came since the last call; `docker start` has the engine count from 0 again.

        Args:
            states: what `docker inspect` prints of each container.
        """
        for state in states:
            count, before = state["RestartCount"], self._seen.get(state["Id"], 0)
            self._seen[state["Id"]] = count
            if count > before:
                self.by_service[_service_of(state)] += count - before


class ContainerCluster:
    """Two routers at published ports, and two cells of two ranks, each a project of compose.

    Attributes:
        access: certificates and key of a client.
    """

    def __init__(self) -> None:
        """Describe it.

        Raises:
            SystemExit: containers cannot run here; says why.
        """
        if (reason := why_not(IMAGE_TAG)) is not None:
            raise SystemExit(f"error: {reason}")
        self._directory = tempfile.TemporaryDirectory(prefix="quire-chaos-")
        here = Path(self._directory.name)
        self._stack = Stack(f"quire-chaos-{os.getpid()}", here, settings=_SETTINGS)
        self._second = self._stack.joining_cell()
        self.access: Mapping[str, Any] = {}
        self._containers: list[Container] = []
        self._pages: list[Page] = []
        self._restarts = Restarts()
        self._watching: asyncio.Task[None] | None = None

    @property
    def targets(self) -> list[str]:
        """The published addresses of the routers, of which one that comes back may get any."""
        return [f"127.0.0.1:{self._stack.port + number}" for number in range(_NUM_ROUTERS)]

    def victims(self) -> list[Container]:
        """Return all containers: one that was killed has been started before the next is chosen."""
        return self._containers

    def pages(self) -> list[Page]:
        """Return where the containers that ran a moment ago show their counters."""
        return self._pages

    async def start(self) -> None:
        """Start everything and return when every router has both cells.

        Raises:
            AssertionError: a container is not healthy within two minutes; its logs are in LOGS.
        """
        await asyncio.to_thread(self._up)
        self.access = {
            "tls_dir": str(self._stack.certificates / "client"),
            "api_key": self._stack.api_key,
        }
        for target in self.targets:
            await until_connected(target, _NUM_CELLS, **self.access)
        self._containers = containers_in(await asyncio.to_thread(self._states))
        self._watching = asyncio.create_task(self._watch())

    def _up(self) -> None:
        self._stack.make_credentials()
        self._stack.scale_routers(_NUM_ROUTERS)
        self._second.up("scheduler")

    def _states(self) -> list[dict[str, Any]]:
        return inspect_all(*self._stack.containers(), *self._second.containers())

    async def _watch(self) -> None:
        while True:
            states = await asyncio.to_thread(self._states)
            self._pages = pages_in(states)
            self._restarts.note(states)
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Keep the logs, and remove everything.

        Raises:
            AssertionError: the engine has failed, so that what it started again was not counted.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await asyncio.to_thread(self._down)
        self._directory.cleanup()
        if self._watching is not None and not self._watching.cancelled():
            self._watching.result()
        ended = ", ".join(f"{each} {number}" for each, number in self._restarts.by_service.items())
        print(f"ended by themselves, and started again by the engine: {ended or 'none'}")
        print(f"logs of the containers: {LOGS}", flush=True)

    def _down(self) -> None:
        LOGS.parent.mkdir(exist_ok=True)
        LOGS.write_text(f"{self._stack.logs(_LOG_LINES)}\n{self._second.logs(_LOG_LINES)}")
        # The second is on a network of the first.
        self._second.down()
        self._stack.down()
