"""Several cells and routers as child processes, on this machine."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from launch.cluster.process import ServiceProcess
from launch.cluster.supervisor import embedded_model


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
        scheduler_options: of every scheduler, by name.
        worker_options: of every worker, by name.
    """

    def __init__(
        self, scheduler_options: Mapping[str, Any], worker_options: Mapping[str, Any]
    ) -> None:
        self._scheduler_options = scheduler_options
        self._worker_options = worker_options
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

    async def _start(self, name: str, options: Mapping[str, Any], port: int = 0) -> ServiceProcess:
        service = ServiceProcess(name, name, {**options, "log_level": "error"})
        self._services.append(service)
        await service.start(port)
        return service

    async def start_cell(self, port: int = 0) -> CellProcesses:
        """Start a cell.

        Args:
            port: of its scheduler; 0 takes a free one.
        """
        worker = await self._start("worker", self._worker_options)
        options = {
            "model": embedded_model(),
            "workers": [worker.address],
            **self._scheduler_options,
        }
        scheduler = await self._start("scheduler", options, port)
        return CellProcesses(worker, scheduler)

    async def start_cells(self, number: int) -> list[CellProcesses]:
        """Start so many cells at once."""
        return await asyncio.gather(*(self.start_cell() for _ in range(number)))

    async def start_router(self, schedulers: list[str], **options: Any) -> str:
        """Start a router of these cells and return its address."""
        return (await self.start_router_process(schedulers, **options)).address

    async def start_router_process(self, schedulers: list[str], **options: Any) -> ServiceProcess:
        """Start a router of these cells."""
        known = {"model": embedded_model(), "schedulers": schedulers}
        return await self._start("router", {**known, **options})

    async def drain(self, cell: CellProcesses) -> int:
        """Have a cell drain, by SIGTERM; return the exit status of its scheduler."""
        os.kill(cell.scheduler.pid, signal.SIGTERM)
        status = await cell.scheduler.wait()
        await cell.worker.stop()
        return status
