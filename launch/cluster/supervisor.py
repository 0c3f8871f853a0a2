"""A whole cluster: a scheduler and a router as child processes, workers from a launcher."""

import asyncio
from collections.abc import Callable

from launch.cluster.config import ClusterConfig, LauncherName, embedded_model
from launch.cluster.process import ServiceProcess
from launch.launchers import make_launcher
from quire.contract.engine_options import EngineOptions
from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.options import values_of
from quire.observe.log import get_logger
from quire.rpc import Role, open_tls, until_serving

__all__ = ["Cluster", "ClusterConfig", "LauncherName", "embedded_model"]

ROUTER_SERVICE = "quire.v1.InferenceService"
ROUTER_TIMEOUT_S = 30.0
RESTARTS_IN_A_ROW = 5
RESTART_DELAY_S = 0.2

log = get_logger()


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

        Raises:
            ConfigError: the certificates cannot be used.
        """
        self.config = config
        self.tls = open_tls(config.tls_dir, Role.CLIENT)
        self.launcher = make_launcher(config, progress)
        self.services: list[ServiceProcess] = list(self.launcher.services)
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
            UnavailableError: a service died without a word, or workers do not come up.
        """
        try:
            await self._start_all()
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(service)) for service in self.services]
        self._keepers.append(asyncio.create_task(self.launcher.keep()))

    async def _start_all(self) -> None:
        config = self.config
        await self.launcher.start()

        scheduler = ServiceProcess(
            "scheduler",
            "scheduler",
            {
                **config.service_values(1),
                **values_of(config, EngineOptions),
                **self.launcher.scheduler_values,
                "model": config.model,
            },
        )
        self.services.append(scheduler)
        self._progress(f"loading {config.model.name} and sizing the KV cache")
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def report(word: str, rest: str) -> None:
            if word == "listening":
                listening.set_result(rest)
            else:
                self._progress(f"{word} {rest}")

        async def announce() -> None:
            await self.launcher.announce_to(await listening)

        async def start_router() -> None:
            # While the workers load: it has imports of its own to do.
            values = {
                **config.service_values(0),
                "model": config.model,
                "schedulers": [await listening],
                "api_keys": config.api_keys,
                # Whoever stops the whole cluster does not wait for what it is doing.
                "drain_timeout_s": 1.0,
            }
            router = ServiceProcess("router", "router", values)
            self.services.append(router)
            await router.start(config.port)

        cell = [asyncio.create_task(scheduler.start(0, report)), asyncio.create_task(announce())]
        router_start = asyncio.create_task(start_router())
        try:
            # The first failure ends the other, which may wait for what will not come. What the
            # scheduler reports of a model explains more than what the router does.
            await asyncio.gather(*cell)
            self._progress("starting the router")
            await router_start
            await self._wait_for_router()
        finally:
            tasks = [*cell, router_start]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_router(self) -> None:
        """Return when the router knows the model: it may have started long before that loaded."""
        try:
            async with asyncio.timeout(ROUTER_TIMEOUT_S):
                await until_serving(self.router.address, ROUTER_SERVICE, self.tls, Role.ROUTER)
        except TimeoutError:
            raise UnavailableError(
                f"the router does not reach its scheduler within {ROUTER_TIMEOUT_S:g} s"
            ) from None

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
            UnavailableError: a service would not stay up, or workers are lost for good.
        """
        await asyncio.gather(*self._keepers)

    async def stop(self) -> None:
        """Stop every service, the router first so that nothing new comes in."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for service in reversed(self.services):
            await service.stop()
        await self.launcher.stop()
