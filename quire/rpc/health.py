"""Asking a service for its health."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.rpc.channels import open_channel, open_sync_channel
from quire.security.tls import TlsFiles

_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def answers(
    address: str, timeout_s: float, tls: TlsFiles | None = None, server_name: str | None = None
) -> bool:
    """Return whether a service at `address` answers a health check, whatever its answer.

    Safe beside other event loops of the process that use gRPC: only a thread waits for it.

    Args:
        address: "host:port".
        timeout_s: how long to wait for a connection and the answer.
        tls: as for `open_channel`.
        server_name: as for `open_channel`.
    """
    channel = open_sync_channel(address, tls, server_name)
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        await asyncio.to_thread(
            check, health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True
        )
    except grpc.RpcError as error:
        return error.code() not in _NO_ANSWER
    finally:
        channel.close()  # ends a call that nobody waits for any more
    return True


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
