"""A worker inside a Ray actor. Imported on whichever node Ray chooses."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.contract.errors import QuireError

if TYPE_CHECKING:
    from worker_svc.config import WorkerConfig
    from worker_svc.service.server import WorkerServer

STOP_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What an actor says of its worker.

    Attributes:
        address: where it listens; empty if it could not start.
        pid: of the actor's process.
        node_id: of Ray's node.
        error: why it could not start; empty if it did.
    """

    address: str
    pid: int
    node_id: str
    error: str


class RayWorker:
    """One rank: the gRPC server of a worker, on an event loop in a thread of its own.

    Ray runs the constructor again, on whatever node, when the process has died; the worker then
    announces its new address. Steps and tensors never pass through Ray.

    Args:
        settings: of the worker, by name; an empty host is that of the node. A directory of
            certificates is at the same place on every node.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        import ray

        # Read when torch is imported: its idle threads must not spin on the cores of others.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from quire.observe import tracing
        from worker_svc.config import WorkerConfig

        self._node_id = ray.get_runtime_context().get_node_id()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="worker", daemon=True).start()
        self._servers: list[WorkerServer] = []
        self._address, self._error = "", ""
        host = settings["host"] or ray.util.get_node_ip_address()
        try:
            tracing.configure("worker", settings["otlp_endpoint"])
            config = WorkerConfig(**{**settings, "host": host})
            self._address = self._run(self._serve(config))
        except QuireError as error:
            self._error = error.message

    def status(self) -> WorkerStatus:
        """Where the worker is, or why it is not."""
        return WorkerStatus(self._address, os.getpid(), self._node_id, self._error)

    def stop(self) -> None:
        """Stop the worker; the process may be killed afterwards."""
        from quire.observe import tracing

        for server in self._servers:
            self._run(server.stop())
        tracing.tracer().stop()

    async def _serve(self, config: "WorkerConfig") -> str:
        from quire.observe import log
        from worker_svc.device.open import open_device
        from worker_svc.service.server import WorkerServer

        log.configure("worker", config.log_level, config.log_format)
        server = WorkerServer(config, open_device(config.device))
        self._servers.append(server)
        return await server.start()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
