"""The worker process: binds, serves until it is asked to stop, and closes."""

import gc
from typing import TYPE_CHECKING

from quire.contract.addresses import join_address
from quire.contract.errors import QuireError
from quire.observe.log import get_logger
from quire.rpc import Server, announce, fail, report, until_stopped
from quire.v1 import worker_pb2, worker_pb2_grpc
from worker_svc.config import WorkerConfig
from worker_svc.device.base import Device
from worker_svc.parallel.link_security import LinkSecurity
from worker_svc.service.announcer import Announcer
from worker_svc.service.servicer import WorkerServicer
from worker_svc.worker import Worker

if TYPE_CHECKING:
    from quire.observe.metrics.pages import ServiceAdmin

log = get_logger()

SERVICE_NAME = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name


class WorkerServer:
    """A worker behind its gRPC server.

    Args:
        config: how to listen and compute.
        device: device that the configuration names.
    """

    def __init__(self, config: WorkerConfig, device: Device) -> None:
        self._config = config
        self._announcers: list[Announcer] = []
        self._worker = Worker(device, config.num_threads, LinkSecurity(config.tls, config.insecure))
        self._servicer = WorkerServicer(self._worker, config.peer_timeout_s, config.tls)
        self._admin: ServiceAdmin | None = None
        self._server = Server([SERVICE_NAME], tls=config.tls)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(
            self._servicer, self._server.grpc_server
        )

    async def start_admin(self, port: int, host: str = "127.0.0.1") -> str:
        """Serve metrics and probes; return the address bound.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        from quire.observe.metrics.pages import ServiceAdmin
        from worker_svc.service.metrics import WorkerCollector

        counters = self._servicer.counters
        self._admin = ServiceAdmin(
            "worker",
            WorkerCollector(
                self._worker, counters, self._servicer.epochs, self._servicer.transfers
            ),
            aliases=None,
            is_ready=lambda: self._server.is_serving,
            certificate_expiry=lambda: self._server.certificate_not_after,
            why_stuck=lambda: counters.why_stuck,
        )
        return await self._admin.start(port, host)

    async def start(self) -> str:
        """Bind, serve, announce the worker if so configured, and return the address bound.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        address = await self._server.start(self._config.host, self._config.port)
        await self._server.set_serving(True)
        if (announcement := self._config.announcement) is not None:
            port = address.rpartition(":")[2]
            self._announcers.append(
                Announcer(
                    announcement.scheduler,
                    announcement.rank,
                    join_address(announcement.host, port),
                    self._config.tls,
                )
            )
        return address

    async def run(self) -> None:
        """Announce the worker until cancelled; return at once if it is not to be announced."""
        for announcer in self._announcers:
            await announcer.run()

    async def stop(self) -> None:
        """Stop announcing, refuse new calls, end running ones, stop the model's thread."""
        for announcer in self._announcers:
            await announcer.stop()
        await self._server.stop()
        if self._admin is not None:
            await self._admin.stop()
        self._servicer.close()


async def serve(config: WorkerConfig, device: Device, ready_fd: int | None) -> int:
    """Serve until SIGINT or SIGTERM.

    Args:
        config: how to listen and compute.
        device: device that the configuration names.
        ready_fd: pipe to which "ready HOST:PORT" or "error MESSAGE" is written; None writes
            nothing.

    Returns:
        The exit status: 0 after a clean stop, else as of `fail`.
    """
    # A collection that visits all modules keeps heartbeats waiting, 0.2 s on an idle machine.
    gc.freeze()
    server = WorkerServer(config, device)
    try:
        if config.admin_port is not None:
            address = await server.start_admin(config.admin_port, config.admin_host)
            report(ready_fd, f"admin {address}")
        address = await server.start()
    except QuireError as error:
        await server.stop()
        return fail(error, ready_fd)
    announce(ready_fd, f"ready {address}")
    try:
        await until_stopped(server.run())
    finally:
        await server.stop()
    log.info("stopped")
    return 0
