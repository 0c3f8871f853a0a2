"""A whole cluster as child processes: workers, their scheduler, a router."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.cli.process import ServiceProcess
from quire.errors import ConfigError, UnavailableError
from quire.log import get_logger

RESTARTS_IN_A_ROW = 5
RESTART_DELAY_S = 0.2

log = get_logger()


def embedded_model() -> Path:
    """Return the directory of the demo model that ships with Quire."""
    return Path(__file__).resolve().parent.parent / "demo_model"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What `quire serve` was asked for.

    Attributes:
        model: Hugging Face model directory.
        host: address every service listens on.
        port: of the router; 0 takes a free one. The other services always take free ones.
        tensor_parallel_size: number of workers that share the model.
        device: of the workers: "cpu", "cuda", "cuda:N" or "auto"; several take one GPU each.
        scheduler_args: further options of `quire scheduler`.
        worker_args: further options of `quire worker`.
        log_level: of all services.
    """

    model: Path
    host: str = "127.0.0.1"
    port: int = 50051
    tensor_parallel_size: int = 1
    device: str = "auto"
    scheduler_args: tuple[str, ...] = ()
    worker_args: tuple[str, ...] = ()
    log_level: str = "warning"

    def __post_init__(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"model directory {self.model} does not exist")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be in [0, 65535], got {self.port}")
        if not 1 <= self.tensor_parallel_size <= 64:
            raise ConfigError(
                f"--tensor-parallel-size must be in [1, 64], got {self.tensor_parallel_size}"
            )

    def device_of(self, rank: int) -> str:
        """Return where a rank computes: on the GPU of its number unless one is named."""
        return f"{self.device}:{rank}" if self.device in ("cuda", "auto") else self.device


class Cluster:
    """Starts, supervises and stops the services of one cell and its router.

    A service that dies is started again on its old port; the others resume what it was doing, so
    its death costs time and no answers.
    """

    def __init__(self, config: ClusterConfig, progress: Callable[[str], None] = lambda _: None):
        """Describe a cluster; nothing runs yet.

        Args:
            config: what to start.
            progress: called with a line about what is being waited for.
        """
        self.config = config
        self.services: list[ServiceProcess] = []
        self._progress = progress
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def router(self) -> ServiceProcess:
        """The router, once `start` has returned."""
        return self.services[-1]

    async def start(self) -> None:
        """Start everything and return when the router takes requests.

        Raises:
            ConfigError: a service said why it cannot start (broken model directory, port in use,
                bad option).
            UnavailableError: a service died without a word.
        """
        try:
            await self._start_all()
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(service)) for service in self.services]

    async def _start_all(self) -> None:
        config = self.config
        common = ["--host", config.host, "--log-level", config.log_level]
        workers = [
            ServiceProcess(
                f"worker {rank}",
                ["worker", *common, "--device", config.device_of(rank), *config.worker_args],
            )
            for rank in range(config.tensor_parallel_size)
        ]
        self.services.extend(workers)
        self._progress(f"starting {len(workers)} worker{'s' if len(workers) > 1 else ''}")
        await asyncio.gather(*(worker.start(0) for worker in workers))

        named_workers = [part for worker in workers for part in ("--worker", worker.address)]
        scheduler = ServiceProcess(
            "scheduler",
            ["scheduler", str(config.model), *named_workers, *common, *config.scheduler_args],
        )
        self.services.append(scheduler)
        self._progress(f"loading {config.model.name} and sizing the KV cache")
        await scheduler.start(0)

        router = ServiceProcess(
            "router",
            ["router", str(config.model), "--scheduler", scheduler.address, *common],
        )
        self.services.append(router)
        self._progress("starting the router")
        await router.start(config.port)

    async def _keep(self, service: ServiceProcess) -> None:
        """Start `service` again whenever it ends; give up when it will not stay up."""
        port = int(service.address.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            status = await service.wait()
            failures = 1 if loop.time() - started > 10 else failures + 1
            if failures > RESTARTS_IN_A_ROW:
                raise UnavailableError(
                    f"{service.name} ended {failures} times in a row, last with status {status}"
                )
            log.warning("service_restarting", name=service.name, status=status, attempt=failures)
            await asyncio.sleep(RESTART_DELAY_S * 2 ** (failures - 1))
            try:
                await service.start(port)
            except (ConfigError, UnavailableError) as error:
                log.error("service_restart_failed", name=service.name, error=error.message)

    async def wait(self) -> None:
        """Run until cancelled.

        Raises:
            UnavailableError: a service would not stay up.
        """
        await asyncio.gather(*self._keepers)

    async def stop(self) -> None:
        """Stop every service, the router first so that nothing new comes in."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for service in reversed(self.services):
            await service.stop()
