"""A whole cluster: a scheduler and a router as child processes, workers from a launcher."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from launch.cluster.config import ClusterConfig, LauncherName, embedded_model
from launch.cluster.drain import drain
from launch.cluster.identity import ids_in_use, ids_of_installed
from launch.cluster.keeper import Patience, keep
from launch.cluster.process import ServiceProcess
from launch.cluster.resize import LostCallError, ask_scheduler
from launch.cluster.roll import prepare, replace_at_rest, replace_each, why_at_rest
from launch.launchers import make_launcher
from quire.contract.addresses import MAX_RANKS
from quire.contract.engine_options import EngineOptions
from quire.contract.errors import ConfigError, InvalidRequestError, UnavailableError
from quire.contract.options import values_of
from quire.contract.outputs import ModelIds
from quire.contract.resizing import ResizeProgress
from quire.rpc import Role, open_tls, until_serving
from router.front_options import FrontOptions

__all__ = ["Cluster", "ClusterConfig", "LauncherName", "embedded_model"]

ROUTER_SERVICE = "quire.v1.InferenceService"
ROUTER_TIMEOUT_S = 30.0
ROLL_TIMEOUT_S = 300


class Cluster:
    """Starts, supervises and stops the services of one cell and its router.

    A service that dies or hangs is started again on its old port; the others resume what it was
    doing, so its death costs time and no answers.
    """

    def __init__(
        self,
        config: ClusterConfig,
        progress: Callable[[str], None] = lambda _: None,
        patience: Patience | None = None,
    ):
        """Describe a cluster; nothing runs yet.

        Args:
            config: what to start.
            progress: called with a line about what is being waited for.
            patience: with services that end or hang; None is the usual one, with the
                configuration's hang_timeout_s.

        Raises:
            ConfigError: the certificates cannot be used.
        """
        self.config = config
        self.tls = open_tls(config.tls_dir, Role.CLIENT)
        self.launcher = make_launcher(config, progress)
        self.services: list[ServiceProcess] = list(self.launcher.services)
        self._progress = progress
        self._patience = patience or Patience(hang_timeout_s=config.hang_timeout_s)
        # By service; of what the launcher keeps by itself, under None.
        self._keepers: dict[ServiceProcess | None, asyncio.Task[None]] = {}
        self._failed = asyncio.Event()
        # Workers that are to take over from those in use.
        self._others: list[ServiceProcess] = []
        self._is_rolling = False

    @property
    def router(self) -> ServiceProcess:
        """The router, once `start` has returned."""
        return self.services[-1]

    async def start(self) -> None:
        """Start everything and return when the router takes requests.

        Raises:
            ConfigError: a service cannot start for its configuration (broken model directory, bad
                option).
            UnavailableError: a service reported another reason (port in use) or died without a
                word, or workers do not come up.
        """
        try:
            await self._start_all()
        except BaseException:
            await self.stop()
            raise
        for service in self.services:
            self._keep(service, keep(service, self._patience))
        self._keep(None, self.launcher.keep())

    def _keep(self, service: ServiceProcess | None, work: Coroutine[None, None, None]) -> None:
        keeper = self._keepers[service] = asyncio.create_task(work)
        keeper.add_done_callback(self._keeper_ended)

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled():
            self._failed.set()

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
            self.tls,
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
                **values_of(config, FrontOptions),
                "http_port": config.port,
                "drain_timeout_s": config.shutdown_timeout_s,
            }
            router = ServiceProcess("router", "router", values, self.tls)
            self.services.append(router)
            await router.start(config.grpc_port)

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

    async def roll(self, say: Callable[[str], None], timeout_s: int = 0) -> None:
        """Replace every child in turn, with the code that is installed now.

        Streams pause and go on with the same tokens. Where that code computes others, or makes
        other text of them, they are finished first.

        Args:
            say: called with a line for each.
            timeout_s: for requests that must be finished; 0 for 300 s.

        Raises:
            UnavailableError: a successor does not come up, those after it keep running; or the
                cluster is being resized or rolled.
        """
        if self._others or self._is_rolling:
            what = "roll" if self._is_rolling else "resize"
            raise UnavailableError(f"roll: must wait for the {what} that is under way")
        self._is_rolling = True
        try:
            began, services = time.monotonic(), list(self.services)
            await prepare(services)
            old, new = await self._ids()
            # Without a model no worker computes: a release that does not come up is replaced, too.
            if old is not None and (why := why_at_rest(old, new)):
                say(f"{why}: what runs is finished first, new requests wait")
                tls = open_tls(self.config.tls_dir, Role.OPERATOR)
                timeout_s = timeout_s or ROLL_TIMEOUT_S
                drained = drain(self._scheduler.address, tls, timeout_s=timeout_s)
                keeps_text = new is not None and new.text_id == old.text_id
                await replace_at_rest(services, drained, say, router_is_last=keeps_text)
            else:
                await replace_each(services, say)
            await self._wait_for_router()
            say(f"{len(services)} processes replaced in {time.monotonic() - began:.1f} s")
        finally:
            self._is_rolling = False

    async def _ids(self) -> tuple[ModelIds | None, ModelIds | None]:
        """Return the ids of the model in use, and under the code that is installed; see there.

        Raises:
            UnavailableError: that code cannot serve the model; nothing was replaced.
        """
        if not self.launcher.services:
            return None, None  # workers of others, which stay as they are
        tls = open_tls(self.config.tls_dir, Role.OPERATOR)
        try:
            new = await ids_of_installed(self.config)
        except UnavailableError as error:
            raise UnavailableError(f"roll: nothing was replaced: {error.message}") from error
        return await ids_in_use([each.address for each in self.launcher.services], tls), new

    @property
    def _scheduler(self) -> ServiceProcess:
        return next(each for each in self.services if each.command == "scheduler")

    async def wait(self) -> None:
        """Run until cancelled.

        Raises:
            ConfigError: a service cannot be started again for its configuration.
            UnavailableError: workers are lost for good.
        """
        await self._failed.wait()
        for keeper in self._keepers.values():
            if keeper.done():
                keeper.result()

    # ---------------------------------------------------------------- resizing

    async def resize(
        self, size: int, timeout_s: int = 0, say: Callable[[str], None] = lambda _: None
    ) -> ResizeProgress:
        """Change the number of workers while the cell serves; new ones start beside the old ones.

        Args:
            size: workers to share the model.
            timeout_s: from the start of the new ones' loading until they must be in use; 0 for
                300 s.
            say: called with a line about what has begun.

        Raises:
            QuireError: the old workers go on, and the new ones are stopped.
        """
        if not 1 <= size <= MAX_RANKS:
            raise InvalidRequestError(
                "tensor_parallel_size", f"must be in [1, {MAX_RANKS}], got {size}"
            )
        if size == len(self.launcher.places):
            raise InvalidRequestError(
                "tensor_parallel_size", f"must be another than the one in use, got {size}"
            )
        if self._others or self._is_rolling:
            what = "roll" if self._is_rolling else "resize"
            raise ConfigError(f"resize: must wait for the {what} that is under way")
        others = self._others = self.launcher.others(size)
        scheduler = self._scheduler
        old: list[ServiceProcess] = []

        def switched() -> None:
            # At once: what dies from now on starts again with the new workers.
            old.extend(self._take_over(scheduler, others))

        try:
            say(f"starting {size} worker{'s' if size > 1 else ''}")
            await asyncio.gather(*(worker.start(0) for worker in others))
            return await ask_scheduler(
                scheduler.address,
                tuple(worker.address for worker in others),
                timeout_s,
                open_tls(self.config.tls_dir, Role.OPERATOR),
                say,
                switched,
            )
        except LostCallError:
            if not old:
                # It may have switched without a word. Its keeper starts it with the old workers.
                scheduler.kill()
            raise
        finally:
            self._others = []
            await _stop_all(old or others)

    def _take_over(
        self, scheduler: ServiceProcess, others: list[ServiceProcess]
    ) -> list[ServiceProcess]:
        """Keep other workers up in place of those in use, and return these."""
        old = list(self.launcher.services)
        for worker in old:
            self._keepers.pop(worker).cancel()
        self.launcher.services = others
        self.services = [*others, *(each for each in self.services if each not in old)]
        self.config = replace(self.config, tensor_parallel_size=len(others))
        for name, value in self.launcher.scheduler_values.items():
            scheduler.set_option(name, value)
        for worker in others:
            self._keep(worker, keep(worker, self._patience))
        return old

    async def stop(self) -> None:
        """Stop every service, the router first so that nothing new comes in."""
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for service in reversed([*self._others, *self.services]):
            await service.stop()
        await self.launcher.stop()


async def _stop_all(services: Sequence[ServiceProcess]) -> None:
    await asyncio.gather(*(each.stop() for each in services))
