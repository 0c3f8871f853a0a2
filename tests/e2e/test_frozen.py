"""Stop a service in mid-stream as SIGSTOP does: it is noticed, and the tokens stay the same."""

import asyncio
import os
import signal

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from launch.cluster.config import embedded_model
from launch.cluster.process import ServiceProcess
from quire import AsyncClient
from quire.rpc import open_channel
from quire.v1 import worker_pb2, worker_pb2_grpc
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


async def test_a_frozen_scheduler_that_was_replaced_under_its_name_ends_as_it_thaws() -> None:
    model, device = embedded_model(), {"device": "cpu", "num_threads": 1}
    worker = ServiceProcess("worker", "worker", {"log_level": "error", **device})
    services = [worker]
    try:
        cell = {"model": model, "workers": [await worker.start(0)], "kv_cache_gib": 0.03125}
        first, second = (
            ServiceProcess(host, "scheduler", {"log_level": "error", "host": host, **cell})
            for host in ("127.0.0.1", "127.0.0.2")
        )
        services += [first, second]
        # A scheduler's name is that of its machine and its port.
        port = int((await first.start(0)).rpartition(":")[2])
        addresses = [f"{each.name}:{port}" for each in (first, second)]
        values = {"log_level": "error", "model": model, "schedulers": addresses}
        router = ServiceProcess("router", "router", values)
        services.append(router)
        async with asyncio.timeout(120), AsyncClient(await router.start(0)) as client:
            expected = await collect_all(client)
            os.kill(first.pid, signal.SIGSTOP)
            try:
                await second.start(port)
                assert await collect_all(client) == expected
                epoch = await epoch_of(worker.address)
            finally:
                os.kill(first.pid, signal.SIGCONT)
            assert await first.wait() == 1
            assert await collect_all(client) == expected
            assert await second.answers(20)
            assert await epoch_of(worker.address) == epoch, "it took no worker back meanwhile"
    finally:
        await asyncio.gather(*(service.stop() for service in reversed(services)))


async def epoch_of(worker: str) -> int:
    async with open_channel(worker) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        epoch: int = (await stub.Describe(worker_pb2.DescribeRequest())).epoch
        return epoch


async def until_health(address: str, status: int) -> None:
    async with asyncio.timeout(60), open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        async for response in watch:
            if response.status == status:
                watch.cancel()
                return
