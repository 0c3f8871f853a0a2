"""Workers as actors of a Ray cluster, which places them and starts them again when they die.

Ray pickles what it carries and listens on all interfaces, so that it is used for nothing else: the
scheduler's orders and the ranks' tensors take their own connections.
"""

import asyncio
import logging
import os
import secrets
import signal
import threading
from contextlib import suppress
from typing import Any

from launch.cluster.config import ClusterConfig
from launch.extras import require
from launch.launchers.base import Launcher, Say, WorkerPlace
from launch.launchers.ray_placement import check_host, choose_bundle, place
from launch.launchers.ray_start import MAX_ATTEMPTS, is_too_slow
from launch.launchers.ray_thread import RayThread
from launch.launchers.ray_worker import STOP_TIMEOUT_S, RayWorker, WorkerStatus
from quire.contract.addresses import WILDCARD_HOSTS, bare_host
from quire.contract.errors import ConfigError, QuireError, UnavailableError
from quire.contract.options import values_of
from quire.contract.service_options import ServiceOptions
from quire.observe.log import get_logger

REACH_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 180.0
RELEASE_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 2.0
# Polls in a row that find an actor dead for good.
DEATHS_IN_A_ROW = 5

log = get_logger()


class RayLauncher(Launcher):
    """One actor for each rank, in a placement group, on one node if that has room.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.

    Attributes:
        statuses: how each worker was when it was last asked, in order of rank.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, config: ClusterConfig, say: Say) -> None:
        require("--launcher ray", "ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if config.ray_address is None and "RAY_AUTH_MODE" not in os.environ:
            # A Ray of our own listens on all interfaces: it obeys only who knows this.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        self._config = config
        self._say = say
        self._thread = RayThread()
        self._is_connected = False
        self._is_ours = False
        self._groups: list[Any] = []  # the placement group, once there is room
        self._bundle: dict[str, float] = {}
        self._actors: list[Any] = []
        self.statuses: list[WorkerStatus] = []

    @property
    def scheduler_values(self) -> dict[str, Any]:
        """How many workers will announce themselves."""
        return {"workers": (), "tensor_parallel_size": self._config.tensor_parallel_size}

    @property
    def places(self) -> list[WorkerPlace]:
        """Each actor, as it was when it was last asked."""
        return [
            WorkerPlace(
                f"worker {rank}",
                status.address,
                f"pid {status.pid} on Ray node {status.node_id[:8]}",
            )
            for rank, status in enumerate(self.statuses)
        ]

    # ---------------------------------------------------------------- start

    async def start(self) -> None:
        """Connect to Ray, or start it here, and have room made for the workers.

        Raises:
            ConfigError: the cluster cannot hold the workers, or they could not reach the scheduler.
            UnavailableError: no cluster answers, or it has no room in time.
        """
        address = self._config.ray_address
        self._say("starting Ray" if address is None else f"connecting to Ray at {address}")
        if address not in (None, "auto"):
            await _check_reachable(str(address))
        await self._connect_patiently()
        _take_sigterm_back()
        size = self._config.tensor_parallel_size
        self._say(f"waiting for room for {size} worker{'s' if size > 1 else ''} in Ray")
        await self._place()

    async def _connect_patiently(self) -> None:
        """Connect, and start a Ray of our own again if it was too slow."""
        attempts_left = MAX_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                await self._thread.call(self._connect, CONNECT_TIMEOUT_S, "connecting to Ray")
            except Exception as error:
                if not is_too_slow(error):
                    raise
                # What has started dies with its thread.
                self._thread.end()
                if not attempts_left:
                    raise UnavailableError(
                        f"--launcher ray: Ray did not start in {MAX_ATTEMPTS} attempts: "
                        f"{_first_line(error)}"
                    ) from error
                self._thread = RayThread()
                self._say("Ray took too long to start: starting it again")
            else:
                return

    def _connect(self) -> None:
        import ray

        if ray.is_initialized():  # by the program that starts this cluster
            self._is_connected = True
            return
        address, size = self._config.ray_address, self._config.tensor_parallel_size
        options: dict[str, Any] = {"address": address}
        if address is None:
            cpus = max(os.cpu_count() or 1, size * self._config.ray_cpus_per_worker)
            options = {
                "address": "local",
                "num_cpus": cpus,
                "include_dashboard": False,
            }
            if self._config.host not in WILDCARD_HOSTS:
                options["_node_ip_address"] = bare_host(self._config.host)
        try:
            ray.init(**options, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UnavailableError(
                f"--ray-address {address}: cannot connect to Ray: {_first_line(error)}"
            ) from error
        self._is_connected = self._is_ours = True

    async def _place(self) -> None:
        import ray

        config, size = self._config, self._config.tensor_parallel_size
        every_node = await self._thread.call(ray.nodes, CONNECT_TIMEOUT_S, "listing Ray's nodes")
        nodes = [node for node in every_node if node["Alive"]]
        resources = [node["Resources"] for node in nodes]
        self._bundle = choose_bundle(config.device, config.ray_cpus_per_worker, size, resources)
        placement = await place(self._bundle, size, resources, self._thread)
        self._groups.append(placement.group)
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
        here = ray.util.get_node_ip_address()
        check_host(config.host, here, [addresses.get(each, each) for each in placement.node_ids])

    # ---------------------------------------------------------------- workers

    async def announce_to(self, scheduler: str) -> None:
        """Start the actors.

        Raises:
            ConfigError: a worker said why it cannot start.
            UnavailableError: Ray cannot start a worker, or not in time.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        config, (group,) = self._config, self._groups
        host, _, port = scheduler.rpartition(":")
        if host in WILDCARD_HOSTS:
            scheduler = f"{ray.util.get_node_ip_address()}:{port}"
        # A Ray of our own is all on this machine.
        is_here = self._is_ours and config.ray_address is None
        own_host = config.host if is_here and config.host not in WILDCARD_HOSTS else ""
        actor_class = ray.remote(RayWorker)
        for rank in range(config.tensor_parallel_size):
            self._actors.append(
                actor_class.options(
                    num_cpus=self._bundle["CPU"],
                    num_gpus=self._bundle.get("GPU", 0),
                    max_restarts=-1,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        group, placement_group_bundle_index=rank
                    ),
                ).remote(
                    {
                        **values_of(config, ServiceOptions),
                        "host": own_host,
                        "port": 0,
                        "admin_port": None,
                        "device": "cuda" if "GPU" in self._bundle else "cpu",
                        "num_threads": config.num_threads or config.ray_cpus_per_worker,
                        "announce_to": scheduler,
                        "rank": rank,
                    }
                )
            )
        self.statuses = await asyncio.gather(*map(self._first_status, range(len(self._actors))))

    async def _first_status(self, rank: int) -> WorkerStatus:
        import ray

        try:
            status = await self.ask(rank, START_TIMEOUT_S)
        except TimeoutError:
            raise UnavailableError(
                f"worker {rank}: Ray did not start it within {START_TIMEOUT_S:g} s"
            ) from None
        except ray.exceptions.RayError as error:
            # The last line of a traceback, such as that Quire is not installed on that node.
            cause = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
            raise UnavailableError(f"worker {rank}: Ray cannot start it: {cause}") from error
        if status.error:
            raise ConfigError(status.error)
        return status

    async def ask(self, rank: int, timeout_s: float) -> WorkerStatus:
        """Ask an actor how its worker is.

        Raises:
            TimeoutError: it does not answer in time.
            RayError: it is not there now, or no more.
        """
        asked = self._actors[rank].status.remote()
        # Not wait_for: in Python 3.11 it loses a cancellation that comes with the answer, and the
        # loop that watches the actors until it is cancelled would not end.
        async with asyncio.timeout(timeout_s):
            status: WorkerStatus = await asyncio.wrap_future(asked.future())
        return status

    async def keep(self) -> None:
        """Watch the actors, which Ray restarts.

        Raises:
            UnavailableError: Ray has given one up.
        """
        await asyncio.gather(*map(self._watch, range(len(self._actors))))

    async def _watch(self, rank: int) -> None:
        import ray

        deaths, is_away = 0, False
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            before = self.statuses[rank]
            try:
                status = await self.ask(rank, START_TIMEOUT_S)
            except ray.exceptions.ActorDiedError as error:
                deaths += 1
                if deaths == DEATHS_IN_A_ROW:
                    raise UnavailableError(
                        f"worker {rank}: Ray has given it up: {_first_line(error)}"
                    ) from error
                continue
            except (TimeoutError, ray.exceptions.RayError) as error:
                if not is_away:
                    log.warning("worker_unavailable", rank=rank, error=_first_line(error))
                is_away = True
                continue
            deaths, is_away = 0, False
            if status != before:
                self.statuses[rank] = status
                log.warning(
                    "worker_restarted",
                    rank=rank,
                    address=status.address,
                    node_id=status.node_id,
                    error=status.error,
                )

    # ---------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Stop the workers, give the room back and leave Ray."""
        if not self._is_connected:
            return
        self._is_connected = False
        asked = [asyncio.wrap_future(actor.stop.remote().future()) for actor in self._actors]
        if asked:
            # One that is not there is stopped already.
            await asyncio.wait(asked, timeout=STOP_TIMEOUT_S)
            for future in asked:
                future.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        try:
            await self._thread.call(self._release, RELEASE_TIMEOUT_S, "leaving Ray")
        except QuireError as error:
            log.warning("ray_not_left", error=error.message)

    def _release(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        # A Ray that has gone has nothing left to give back.
        with suppress(ray.exceptions.RayError):
            for actor in self._actors:
                ray.kill(actor, no_restart=True)
            for group in self._groups:
                remove_placement_group(group)
        if self._is_ours:
            ray.shutdown()


def _take_sigterm_back() -> None:
    """Install Python's handler again: Ray put one in its place that aborts the process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.siginterrupt(signal.SIGTERM, False)


async def _check_reachable(address: str) -> None:
    """Raise UnavailableError if nothing listens at `address`; Ray itself would try for ever."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REACH_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError) as error:
        raise UnavailableError(
            f"--ray-address {address}: no Ray cluster answers there "
            f"({_first_line(error) or f'waited {REACH_TIMEOUT_S:g} s'})"
        ) from error
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
