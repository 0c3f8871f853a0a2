"""Waiting for a service to serve."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.rpc.channels import open_channel
from quire.security.tls import TlsFiles


async def until_serving(
    address: str, service: str, tls: TlsFiles | None = None, server_name: str | None = None
) -> None:
    """Return when a service at `address` reports SERVING.

    Args:
        address: "host:port".
        service: its full name.
        tls: as for `open_channel`.
        server_name: as for `open_channel`.
    """
    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(address, tls, server_name) as channel:
        while True:
            await channel.channel_ready()
            watch = health_pb2_grpc.HealthStub(channel).Watch(request)
            try:
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)  # it ended while it was asked, or is something else
            finally:
                watch.cancel()
