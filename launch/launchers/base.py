"""What a launcher is: the part of a cluster that brings its workers up."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launch.cluster.process import ServiceProcess
from quire.contract.errors import ConfigError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker as the user is shown it.

    Attributes:
        name: e.g. "worker 0".
        address: where it listens.
        process: what runs it, e.g. "pid 17"; empty if that is not known.
    """

    name: str
    address: str
    process: str


class Launcher(ABC):
    """Brings the workers of a cell up, keeps them up and stops them.

    A cluster calls `start`, starts the scheduler with `scheduler_values`, calls `announce_to` as
    soon as the scheduler listens, `keep` once all is up, and `stop` in any case, also after a
    failure.

    Attributes:
        services: workers that are children of this process; the cluster restarts those that die.
    """

    services: Sequence[ServiceProcess] = ()

    @property
    @abstractmethod
    def scheduler_values(self) -> dict[str, Any]:
        """Settings by which the scheduler finds the workers. Known once `start` has returned."""

    @property
    @abstractmethod
    def places(self) -> list[WorkerPlace]:
        """Where the workers are, in order of rank. Known once the scheduler is ready."""

    @abstractmethod
    async def start(self) -> None:
        """Bring up workers, or what they need, before there is a scheduler.

        Raises:
            ConfigError: it cannot work as asked; one line that says why.
            UnavailableError: something that should be there does not answer.
        """

    async def announce_to(self, scheduler: str) -> None:  # noqa: B027 - few launchers need it
        """Start workers that announce themselves.

        Args:
            scheduler: its address, which listens already and waits for them.

        Raises:
            ConfigError: a worker said why it cannot start.
            UnavailableError: a worker does not come up.
        """

    def others(self, size: int) -> list[ServiceProcess]:
        """Return workers, not started, of which so many would share the model.

        Raises:
            ConfigError: workers of this launcher are not started here.
        """
        raise ConfigError(
            "launcher: must be local for this machine to start other workers; start them, and name "
            "them to the scheduler by `quire resize SCHEDULER --worker HOST:PORT`"
        )

    async def keep(self) -> None:
        """Look after workers that are not `services`; runs until cancelled.

        Raises:
            UnavailableError: they are lost for good.
        """
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:  # noqa: B027 - few launchers need it
        """Stop workers that are not `services`; safe at any time."""
