"""Workers as child processes of this one."""

import asyncio
import os
from typing import Any

from launch.cluster.config import ClusterConfig
from launch.cluster.process import ServiceProcess
from launch.launchers.base import Launcher, Say, WorkerPlace


class LocalLauncher(Launcher):
    """One child process for each rank, on this machine.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.
    """

    def __init__(self, config: ClusterConfig, say: Say) -> None:
        self._say = say
        size, num_threads = config.tensor_parallel_size, config.num_threads
        if num_threads is None and size > 1:
            # Ranks with more threads than cores would wait for each other's.
            num_threads = max(1, len(os.sched_getaffinity(0)) // size)
        self.services = [
            ServiceProcess(
                f"worker {rank}",
                "worker",
                {
                    **config.service_values(2 + rank),
                    "device": config.device_of(rank),
                    "num_threads": num_threads,
                },
            )
            for rank in range(size)
        ]

    @property
    def scheduler_values(self) -> dict[str, Any]:
        """The address of each child."""
        addresses = [worker.address for worker in self.services]
        return {"workers": addresses, "tensor_parallel_size": None}

    @property
    def places(self) -> list[WorkerPlace]:
        """Each child."""
        return [
            WorkerPlace(worker.name, worker.address, f"pid {worker.pid}")
            for worker in self.services
        ]

    async def start(self) -> None:
        """Start the children and wait until they listen."""
        count = len(self.services)
        self._say(f"starting {count} worker{'s' if count > 1 else ''}")
        await asyncio.gather(*(worker.start(0) for worker in self.services))
