"""Workers that run already, at addresses that do not change."""

import asyncio
from typing import Any

from launch.cluster.config import ClusterConfig
from launch.launchers.base import Launcher, Say, WorkerPlace
from quire.contract.errors import UnavailableError
from quire.rpc import Role, open_tls, until_serving

START_TIMEOUT_S = 300.0
WORKER_SERVICE = "quire.v1.WorkerService"


class StaticLauncher(Launcher):
    """Waits for workers at the addresses given, which others start, restart and stop.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.
        timeout_s: how long to wait for all of them.
    """

    def __init__(self, config: ClusterConfig, say: Say, timeout_s: float = START_TIMEOUT_S) -> None:
        self._addresses = config.workers
        self._tls_dir = config.tls_dir
        self._say = say
        self._timeout_s = timeout_s

    @property
    def scheduler_values(self) -> dict[str, Any]:
        """The addresses."""
        return {"workers": self._addresses, "tensor_parallel_size": None}

    @property
    def places(self) -> list[WorkerPlace]:
        """The addresses."""
        return [
            WorkerPlace(f"worker {rank}", address, "")
            for rank, address in enumerate(self._addresses)
        ]

    async def start(self) -> None:
        """Wait until every worker answers.

        Raises:
            UnavailableError: some do not; names them.
        """
        tls = open_tls(self._tls_dir, Role.CLIENT)
        silent = dict(enumerate(self._addresses))
        waiting = {
            asyncio.create_task(until_serving(address, WORKER_SERVICE, tls, Role.WORKER)): rank
            for rank, address in silent.items()
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                while silent:
                    self._say(f"waiting for {_names(silent)}")
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                        del silent[waiting.pop(task)]
        except TimeoutError:
            raise UnavailableError(
                f"no answer within {self._timeout_s:g} s from {_names(silent)}"
            ) from None
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _names(silent: dict[int, str]) -> str:
    return ", ".join(f"worker {rank} at {address}" for rank, address in sorted(silent.items()))
