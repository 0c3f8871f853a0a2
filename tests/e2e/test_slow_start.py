"""A model that takes longer to load than a router waits for its first scheduler."""

import asyncio
import os
import signal

from launch.cli.console import cell_status
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model


async def test_a_cluster_is_ready_when_its_router_knows_the_model() -> None:
    cluster = Cluster(
        ClusterConfig(model=embedded_model(), port=None, grpc_port=0, kv_cache_gib=0.03)
    )
    starting = asyncio.create_task(cluster.start())
    try:
        async with asyncio.timeout(120):
            while len(cluster.services) < 2:
                await asyncio.sleep(0.01)
            worker = cluster.services[0]
            os.kill(worker.pid, signal.SIGSTOP)
            # The router has imported what it needs, and has given up waiting for the scheduler.
            while not (cluster.services[-1].name == "router" and cluster.router.address):
                await asyncio.sleep(0.01)
            assert not starting.done()
            os.kill(worker.pid, signal.SIGCONT)
            await starting
        status = await cell_status(cluster.router.address)
        assert status.connected
        assert status.model is not None
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await cluster.stop()
