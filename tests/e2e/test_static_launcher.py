"""A cluster over workers that it did not start."""

import asyncio
import os
import signal

from launch.cluster.process import ServiceProcess
from launch.cluster.supervisor import Cluster, ClusterConfig, LauncherName, embedded_model
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from scheduler_svc.workers.client import answers

PROMPT = "The list class"
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=100, ignore_eos=True)


async def test_workers_of_others_are_waited_for_used_and_left_running() -> None:
    options = {"device": "cpu", "num_threads": 1, "log_level": "warning"}
    workers = [ServiceProcess(f"worker {rank}", "worker", options) for rank in range(2)]
    try:
        await asyncio.gather(*(worker.start(0) for worker in workers))
        addresses = tuple(worker.address.replace("127.0.0.1", "localhost") for worker in workers)
        cluster = Cluster(
            ClusterConfig(
                model=embedded_model(),
                port=None,
                grpc_port=0,
                kv_cache_gib=0.03125,
                dtype="float32",
                launcher=LauncherName.STATIC,
                workers=addresses,
            )
        )
        await cluster.start()
        try:
            assert [service.name for service in cluster.services] == ["scheduler", "router"]
            assert [place.address for place in cluster.launcher.places] == list(addresses)
            tokens: list[int] = []
            async with AsyncClient(cluster.router.address) as client, asyncio.timeout(60):
                expected = (await client.generate(PROMPT, PARAMS)).token_ids
                async for event in client.stream(PROMPT, PARAMS):
                    if isinstance(event, Delta):
                        if not tokens:
                            os.kill(workers[1].pid, signal.SIGKILL)
                            await workers[1].wait()
                            await workers[1].start(int(workers[1].address.rpartition(":")[2]))
                        tokens += event.token_ids
            assert tuple(tokens) == expected, "restarted by others, in mid-stream"
        finally:
            await cluster.stop()
        # The workers are not the cluster's to stop.
        assert all([await answers(rank, address) for rank, address in enumerate(addresses)])
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
