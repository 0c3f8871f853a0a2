"""Several cells and routers as child processes, on this machine."""

import asyncio
import os
import signal
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from launch.cluster.cluster import embedded_model
from launch.cluster.process import ServiceProcess


@dataclass(frozen=True, slots=True)
class CellProcesses:
    """A worker and its scheduler."""

    worker: ServiceProcess
    scheduler: ServiceProcess

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return self.scheduler.address


class Cells:
    """Cells of the embedded model, and routers of them; all are stopped on the way out.

    Args:
        scheduler_args: options of every scheduler.
        worker_args: options of every worker.
    """

    def __init__(
        self, scheduler_args: tuple[str, ...] = (), worker_args: tuple[str, ...] = ()
    ) -> None:
        self._scheduler_args = scheduler_args
        self._worker_args = worker_args
        self._services: list[ServiceProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Routers first, so that no cell has anything to finish.
        for service in sorted(self._services, key=lambda each: each.name != "router"):
            await service.stop()

    async def _start(self, name: str, *command: str, port: int = 0) -> ServiceProcess:
        service = ServiceProcess(name, [name, *command, "--log-level", "error"])
        self._services.append(service)
        await service.start(port)
        return service

    async def start_cell(self, port: int = 0) -> CellProcesses:
        """Start a cell.

        Args:
            port: of its scheduler; 0 takes a free one.
        """
        worker = await self._start("worker", *self._worker_args)
        scheduler = await self._start(
            "scheduler",
            *(str(embedded_model()), "--worker", worker.address, *self._scheduler_args),
            port=port,
        )
        return CellProcesses(worker, scheduler)

    async def start_cells(self, number: int) -> list[CellProcesses]:
        """Start so many cells at once."""
        return await asyncio.gather(*(self.start_cell() for _ in range(number)))

    async def start_router(self, schedulers: list[str], *options: str) -> str:
        """Start a router of these cells and return its address."""
        named = [part for address in schedulers for part in ("--scheduler", address)]
        router = await self._start("router", str(embedded_model()), *named, *options)
        return router.address

    async def drain(self, cell: CellProcesses) -> int:
        """Have a cell drain, by SIGTERM; return the exit status of its scheduler."""
        os.kill(cell.scheduler.pid, signal.SIGTERM)
        status = await cell.scheduler.wait()
        await cell.worker.stop()
        return status
