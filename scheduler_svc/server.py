"""The scheduler process: a gRPC server for routers, and the driver of its workers."""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quire.contract.errors import QuireError
from quire.observe import log as quire_log
from quire.rpc import Server, announce, fail, report, stop_signal
from quire.v1 import scheduler_pb2_grpc
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.driver import Driver
from scheduler_svc.servicer import SchedulerServicer

if TYPE_CHECKING:
    from quire.observe.metrics.pages import ServiceAdmin

SERVICE_NAME = "quire.v1.SchedulerService"


class SchedulerServer:
    """A running scheduler. Its health is SERVING while its workers can run steps.

    Args:
        config: its settings.
        on_missing: called with the ranks that have not announced themselves, whenever they change,
            down to none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_missing: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._server = Server([SERVICE_NAME], tls=config.tls)
        self._driver = Driver(config, self._server.set_serving, on_missing)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
            SchedulerServicer(self._driver), self._server.grpc_server
        )
        self._run: asyncio.Task[None] | None = None
        self._admin: ServiceAdmin | None = None

    async def start_admin(self, port: int, host: str = "127.0.0.1") -> str:
        """Serve metrics and probes, from before the workers are there; return the address bound.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        from quire.observe.metrics.pages import ServiceAdmin
        from scheduler_svc.metrics import SchedulerAliases, SchedulerCollector

        self._admin = ServiceAdmin(
            "scheduler",
            SchedulerCollector(self._driver),
            SchedulerAliases(self._driver),
            is_ready=lambda: self._server.is_serving,
            certificate_expiry=lambda: self._server.certificate_not_after,
            why_stuck=lambda: self._driver.why_stuck,
            why_not_ready=lambda: self._driver.workers.why_unformed,
        )
        return await self._admin.start(port, host)

    async def start(self) -> str:
        """Listen, begin to form the workers, and return the address bound.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        address = await self._server.start(self._config.host, self._config.port)
        name = f"{socket.gethostname()}:{address.rpartition(':')[2]}"
        self._run = asyncio.create_task(self._driver.run(name))
        return address

    async def wait_until_serving(self) -> None:
        """Return when the workers have been formed for the first time."""
        await self._driver.wait_serving()

    async def drain(self) -> None:
        """Refuse new requests, have the others moved, and finish what is not."""
        await self._driver.drain(move=True)

    async def wait_until_drained(self) -> None:
        """Return when the cell has been drained, by `drain` or by the Drain RPC."""
        await self._driver.drained.wait()

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            QuireError: the workers cannot be used, or belong to another scheduler now.
        """
        assert self._run is not None, "started"
        await asyncio.shield(self._run)

    async def stop(self) -> None:
        """End sessions and streams, and stop listening."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
        await self._driver.close()
        await self._server.stop()
        if self._admin is not None:
            await self._admin.stop()


async def serve(config: SchedulerConfig, ready_fd: int | None) -> int:
    """Run a scheduler until SIGINT, or until it is drained: by SIGTERM or the Drain RPC.

    Args:
        config: its settings.
        ready_fd: pipe on which to report to the parent process how the start went; None for none.

    Returns:
        The exit status of the process.
    """
    quire_log.configure("scheduler", config.log_level, config.log_format)
    # A collection that visits all modules keeps heartbeats waiting.
    gc.freeze()

    def report_missing(ranks: tuple[int, ...]) -> None:
        names = ", ".join(f"worker {rank}" for rank in ranks)
        if not announced:
            report(ready_fd, f"waiting for {names or 'the workers to load the model'}")

    scheduler = SchedulerServer(config, report_missing)
    stopped = asyncio.create_task(stop_signal())
    drained = asyncio.create_task(scheduler.wait_until_drained())
    tasks: set[asyncio.Task[Any]] = {stopped, drained}
    announced = False
    try:
        if config.admin_port is not None:
            address = await scheduler.start_admin(config.admin_port, config.admin_host)
            report(ready_fd, f"admin {address}")
        address = await scheduler.start()
        report(ready_fd, f"listening {address}")
        running = asyncio.create_task(scheduler.run())
        formed = asyncio.create_task(scheduler.wait_until_serving())
        tasks |= {running, formed}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if formed.done():
            # Objects of the start live as long as the process: exempt them from collection.
            gc.collect()
            gc.freeze()
            announce(ready_fd, f"ready {address}")
            announced = True
        await asyncio.wait({stopped, running, drained}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done() and stopped.result() is signal.SIGTERM and formed.done():
            stopped = asyncio.create_task(stop_signal())
            draining = asyncio.create_task(scheduler.drain())
            tasks |= {stopped, draining}
            # A second signal ends the wait.
            await asyncio.wait({stopped, running, drained}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    except QuireError as error:
        return fail(error, None if announced else ready_fd)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await scheduler.stop()
    return 0
