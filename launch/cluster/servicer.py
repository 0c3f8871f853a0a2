"""quire.v1.ClusterService: orders that `quire serve` takes while it runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc

from launch.cluster.supervisor import Cluster
from quire.rpc import Role, Server, open_tls
from quire.v1 import cluster_pb2, cluster_pb2_grpc
from quire.wire.resizing import resize_progress_to_proto

SERVICE_NAME = "quire.v1.ClusterService"


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """Hands orders to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._orders: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Give up what is under way."""
        for order in self._orders:
            order.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)

    async def Resize(
        self, request: cluster_pb2.ClusterServiceResizeRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[cluster_pb2.ClusterServiceResizeResponse]:
        """Change the number of workers, also if the caller leaves, and report what has begun."""
        size, timeout_s = request.tensor_parallel_size, request.timeout_s
        lines, resizing = self._begin(lambda say: self._cluster.resize(size, timeout_s, say))
        while (line := await lines.get()) is not None:
            yield cluster_pb2.ClusterServiceResizeResponse(progress=line)
        result = resize_progress_to_proto(await resizing)
        yield cluster_pb2.ClusterServiceResizeResponse(result=result)

    async def Roll(
        self, request: cluster_pb2.ClusterServiceRollRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[cluster_pb2.ClusterServiceRollResponse]:
        """Replace every process, also if the caller leaves, and report each."""
        lines, rolling = self._begin(lambda say: self._cluster.roll(say, request.timeout_s))
        while (line := await lines.get()) is not None:
            yield cluster_pb2.ClusterServiceRollResponse(progress=line)
        await rolling

    def _begin(
        self, order: Callable[[Callable[[str], None]], Coroutine[Any, Any, Any]]
    ) -> "tuple[asyncio.Queue[str | None], asyncio.Task[Any]]":
        """Begin what a caller has ordered; return what is to be shown, None at its end, and it."""
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(order(lines.put_nowait))
        self._orders.add(task)
        task.add_done_callback(lambda _: lines.put_nowait(None))
        task.add_done_callback(self._orders.discard)
        return lines, task


class Control:
    """The control port of a cluster, on this machine only.

    Args:
        cluster: that is controlled.

    Raises:
        ConfigError: the operator's certificate cannot be used.
    """

    def __init__(self, cluster: Cluster) -> None:
        config = cluster.config
        self._port = config.control_port
        self._server = Server([SERVICE_NAME], tls=open_tls(config.tls_dir, Role.OPERATOR))
        self._servicer = ClusterServicer(cluster)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(
            self._servicer, self._server.grpc_server
        )

    async def start(self) -> str:
        """Listen, and return the address.

        Raises:
            UnavailableError: the port is in use.
        """
        address = await self._server.start("127.0.0.1", self._port or 0)
        await self._server.set_serving(True)
        return address

    async def stop(self) -> None:
        """Give up what is under way, and stop listening."""
        await self._servicer.stop()
        await self._server.stop(0)
