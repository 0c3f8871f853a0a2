"""Waiting for a service to serve."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.rpc.channels import open_channel


async def until_serving(address: str, service: str) -> None:
    """Return when a service at `address` says that it serves."""
    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(address) as channel:
        while True:
            watch = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)
            try:
                async for response in watch:
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)  # it ended while it was asked, or is something else
            finally:
                watch.cancel()
