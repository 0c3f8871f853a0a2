"""Workers as child processes of this one."""

import asyncio
import os
from typing import Any

from launch.cluster.config import ClusterConfig
from launch.cluster.process import ServiceProcess
from launch.launchers.base import Launcher, Say, WorkerPlace
from quire.rpc import Role, open_tls


class LocalLauncher(Launcher):
    """One child process for each rank, on this machine.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.
    """

    def __init__(self, config: ClusterConfig, say: Say) -> None:
        self._say = say
        self._config = config
        self.services = self._make(config.tensor_parallel_size)

    def others(self, size: int) -> list[ServiceProcess]:
        """Children that take free ports for their metrics: the first ones are still in use."""
        return self._make(size, takes_free_ports=True)

    def _make(self, size: int, *, takes_free_ports: bool = False) -> list[ServiceProcess]:
        config, num_threads = self._config, self._config.num_threads
        if num_threads is None and size > 1:
            # Ranks with more threads than cores would wait for each other's.
            num_threads = max(1, len(os.sched_getaffinity(0)) // size)
        free = {"admin_port": 0} if takes_free_ports and config.admin_port else {}
        return [
            ServiceProcess(
                f"worker {rank}",
                "worker",
                {
                    **config.service_values(2 + rank),
                    **free,
                    "device": config.device_of(rank),
                    "num_threads": num_threads,
                },
                open_tls(config.tls_dir, Role.CLIENT),
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
