"""Stop a service in mid-stream as SIGSTOP does: it is noticed, and the tokens stay the same."""

import asyncio
import os
import signal

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire import AsyncClient
from quire.rpc import open_channel
from tests.e2e.conftest import SharedClusters
from tests.e2e.test_recovery import NUM_STREAMING, PROMPTS, collect, collect_all

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    ("victim", "observer", "ranks"),
    [
        ("scheduler", "router", 1),
        ("worker 0", "scheduler", 1),
        ("worker 0", "scheduler", 2),
        ("worker 1", "scheduler", 2),
    ],
)
async def test_a_frozen_service_is_lost_and_goes_on_when_it_thaws(
    shared_clusters: SharedClusters, victim: str, observer: str, ranks: int
) -> None:
    cluster = shared_clusters.get(tensor_parallel_size=ranks)
    services = {service.name: service for service in cluster.services}
    others = {name: each.pid for name, each in services.items() if name != victim}
    pid = services[victim].pid
    async with AsyncClient(cluster.router.address) as client:
        expected = await collect_all(client)
        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(client, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived[:NUM_STREAMING]))
        os.kill(pid, signal.SIGSTOP)
        try:
            await until_health(services[observer].address, NOT_SERVING)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await asyncio.gather(*streams) == expected
        # They keep their weights: the other rank does not wait for a frozen one until it must exit.
        assert {name: services[name].pid for name in others} == others


async def until_health(address: str, status: int) -> None:
    async with asyncio.timeout(60), open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async for response in watch:
            if response.status == status:
                watch.cancel()
                return
