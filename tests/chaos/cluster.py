"""Clusters to disturb: each service a child process that is started again when it dies."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launch.cluster.config import embedded_model
from launch.cluster.process import SPARE_NAME, ServiceProcess
from quire.contract.errors import ConfigError, UnavailableError
from quire.rpc import Role, until_serving
from tests.chaos.paths import Page

_ROUTER_SERVICE = "quire.v1.InferenceService"
_START_TIMEOUT_S = 600.0
# Threads that share their cores with other services mostly wait for each other.
_WORKER_OPTIONS: dict[str, Any] = {"num_threads": 1}
_SCHEDULER_OPTIONS: dict[str, Any] = {"kv_cache_gib": 0.03125}
# Of a model that is not the embedded one: its tokens take more.
_SERVED_CACHE_GIB = 0.25


def free_port() -> int:
    """Return a port of this host that nothing listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that may be disturbed."""

    role: str
    name: str
    pid: int

    @property
    def label(self) -> str:
        """What a report calls it."""
        return f"{self.name} ({self.pid})"

    async def kill(self) -> None:
        """End it by SIGKILL; its supervisor starts another.

        Raises:
            ProcessLookupError: it is gone, as for the others.
        """
        os.kill(self.pid, signal.SIGKILL)

    async def freeze(self) -> None:
        """Stop it, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)


class Kept:
    """A child process that starts again at its port as often as it ends."""

    def __init__(self, role: str, name: str, options: Mapping[str, Any], port: int = 0) -> None:
        """Describe it.

        Args:
            role: "router", "scheduler" or "worker", a subcommand of `quire`.
            name: shown in the report.
            options: of the service.
            port: 0 takes a free one.
        """
        self.role = role
        self.name = name
        self.port = port or free_port()
        self.service = ServiceProcess(
            name, role, {"log_level": "error", "admin_port": 0, **options}
        )
        self.ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, also before it does."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, and again whenever it ends, until `stop`.

        Raises:
            ConfigError: it reported why it cannot start.
            UnavailableError: it died before it was ready.
        """
        await self.service.start(self.port)
        self.ready.set()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            await self.service.wait()
            self.ready.clear()
            # What is killed while it starts, or finds its cell in ruins, is started again too.
            while not self.ready.is_set():
                with contextlib.suppress(ConfigError, UnavailableError):
                    await self.service.start(self.port)
                    self.ready.set()

    def forget(self) -> None:
        """Start it no more."""
        if self._keeper is not None:
            self._keeper.cancel()

    async def stop(self, grace_s: float = 2.0) -> None:
        """End it, by SIGKILL if it takes longer than that, until `start`."""
        self.forget()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)
        self.ready.clear()
        await self.service.stop(grace_s)


class ChaosCluster:
    """Routers of several tensor-parallel cells, all of one model.

    Attributes:
        services: every process, in the order of their start.
        workers: of each cell, by rank.
        schedulers: of each cell.
        routers: of all cells.
        access: further arguments of a client.
    """

    access: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        num_routers: int,
        num_cells: int,
        tensor_parallel_size: int,
        scheduler_options: Mapping[str, Any] = _SCHEDULER_OPTIONS,
        router_options: Mapping[str, Any] = MappingProxyType({}),
        model_dir: str = "",
    ) -> None:
        model = {"model": model_dir or embedded_model()}
        self.services: list[Kept] = []
        self.workers: list[list[Kept]] = []
        self.schedulers: list[Kept] = []
        for cell in range(num_cells):
            workers = [
                Kept("worker", f"worker {cell}.{rank}", _WORKER_OPTIONS)
                for rank in range(tensor_parallel_size)
            ]
            addresses = [each.address for each in workers]
            scheduler = Kept(
                "scheduler",
                f"scheduler {cell}",
                {**model, **scheduler_options, "workers": addresses},
            )
            self.workers.append(workers)
            self.schedulers.append(scheduler)
            self.services += [*workers, scheduler]
        schedulers = [each.address for each in self.schedulers]
        self.routers = [
            Kept(
                "router",
                f"router {number}",
                {**model, **router_options, "schedulers": schedulers},
            )
            for number in range(num_routers)
        ]
        self.services += self.routers

    def victims(self) -> list[Victim]:
        """Return the processes that serve now."""
        return [
            Victim(each.role, each.name, each.service.pid)
            for each in self.services
            if each.ready.is_set()
        ]

    def pages(self) -> list[Page]:
        """Return where the processes that serve now show their counters."""
        return [
            Page(each.service.pid, each.service.admin_address)
            for each in self.services
            if each.ready.is_set() and each.role != "worker"
        ]

    @property
    def targets(self) -> list[str]:
        """Addresses of the routers."""
        return [each.address for each in self.routers]

    async def start(self) -> None:
        """Start everything and return when every router serves.

        Raises:
            TimeoutError: one does not within two minutes.
        """
        async with asyncio.timeout(_START_TIMEOUT_S):
            await asyncio.gather(*(each.start() for each in self.services))
            for target in self.targets:
                await until_serving(target, _ROUTER_SERVICE, None, Role.ROUTER)

    async def kill(self) -> None:
        """End every process at once by SIGKILL, for good."""
        for each in self.services:
            each.forget()
        for victim in self.victims():
            os.kill(victim.pid, signal.SIGKILL)
        await self.stop()

    async def stop(self) -> None:
        """Stop everything."""
        await asyncio.gather(*(each.stop() for each in self.services))


class ServedCluster:
    """What `quire serve` starts: its children are disturbed, and it starts them again.

    Args:
        tensor_parallel_size: number of workers.
        options: further ones of `quire serve`.
        model: directory, file or name; empty for the embedded one.
    """

    access: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, tensor_parallel_size: int, *options: str, model: str = "") -> None:
        self._port = free_port()
        cache_gib = _SERVED_CACHE_GIB if model else _SCHEDULER_OPTIONS["kv_cache_gib"]
        self._arguments = [
            *[model or str(embedded_model()), "--port", "0", "--grpc-port", str(self._port)],
            *["--tensor-parallel-size", str(tensor_parallel_size)],
            *["--kv-cache-gib", str(cache_gib), "--num-threads", "1"],
            *options,
        ]
        self._process: asyncio.subprocess.Process | None = None

    def pages(self) -> list[Page]:
        """Return none: what `quire serve` starts serves no metrics unless it is asked to."""
        return []

    @property
    def targets(self) -> list[str]:
        """Address of the router."""
        return [f"127.0.0.1:{self._port}"]

    async def start(self) -> None:
        """Start it and return when the router serves.

        Raises:
            TimeoutError: it does not within two minutes.
        """
        self._process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "launch.cli.main", "serve"],
            *self._arguments,
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(_START_TIMEOUT_S):
            await until_serving(self.targets[0], _ROUTER_SERVICE, None, Role.ROUTER)

    def victims(self) -> list[Victim]:
        """Return the children that run now, but for those that are held ready to replace them."""
        assert self._process is not None, "start() comes first"
        victims = []
        for pid in _children(self._process.pid):
            with contextlib.suppress(OSError, ValueError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == SPARE_NAME:
                    continue
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                role = words[words.index(b"launch.cli.main") + 1].decode()
                victims.append(Victim(role, f"{role} of quire serve", pid))
        return victims

    async def stop(self) -> None:
        """Stop it, and its children with it."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


def _children(pid: int) -> list[int]:
    """Return the process ids of a process's children (Linux)."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return found
