"""The addresses of the workers: configured, or announced by the workers themselves."""

import asyncio
import re
from collections.abc import Awaitable, Callable

from quire.contract.errors import ConfigError, InvalidRequestError, RankTakenError
from quire.contract.sessions import Announcement
from quire.observe.log import get_logger
from scheduler_svc.config import SchedulerConfig

# A DNS name and a port.
MAX_ADDRESS_CHARACTERS = 253 + 6
# Only hosts: another scheme of gRPC could name a socket in the scheduler's file system.
ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")

log = get_logger()


class Roster:
    """The known address of each rank.

    Configured addresses stay. An announced one may be replaced once no worker answers there, and is
    dropped when the worker is unreachable: it announces itself again if it lives.

    Args:
        config: addresses of the workers, or how many announce themselves.
        answers: returns whether the worker of a rank (first argument) answers at an address.
        on_missing: called with the ranks that are waited for, whenever they change, down to none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        answers: Callable[[int, str], Awaitable[bool]],
        on_missing: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._size = config.num_ranks
        self._is_announced = config.waits_for_announcements
        self._addresses = dict(enumerate(config.worker_addresses))
        self._answers = answers
        self._on_missing = on_missing
        self._changed = asyncio.Event()

    async def complete(self) -> tuple[str, ...]:
        """Return the address of every rank, waiting for those that are missing."""
        reported: tuple[int, ...] = ()
        while missing := tuple(sorted(set(range(self._size)) - self._addresses.keys())):
            if missing != reported:
                log.warning("workers_missing", ranks=missing, tensor_parallel_size=self._size)
                self._on_missing(missing)
                reported = missing
            self._changed.clear()
            await self._changed.wait()
        if reported:
            self._on_missing(())
        return tuple(self._addresses[rank] for rank in range(self._size))

    async def announce(self, announcement: Announcement) -> None:
        """Record the address of a worker, for the next time that the workers are formed.

        Raises:
            InvalidRequestError: no such rank, or no such address.
            ConfigError: workers are configured by address.
            RankTakenError: another worker holds the rank and answers.
        """
        self._check(announcement)
        rank, address = announcement.rank, announcement.address
        while (holder := self._addresses.get(rank)) not in (None, address):
            if await self._answers(rank, holder):
                raise RankTakenError(f"rank {rank} is held by the worker at {holder}")
            # Meanwhile the rank may have been given to another worker.
            if self._addresses.get(rank) == holder:
                break
        if self._addresses.get(rank) == address:
            return
        # If another rank had this address before, its worker is gone.
        self._addresses = {
            each: where for each, where in self._addresses.items() if where != address
        }
        self._addresses[rank] = address
        log.info("worker_announced", rank=rank, address=address, version=announcement.version[:32])
        self._changed.set()

    def forget(self, rank: int, address: str) -> None:
        """Drop an announced address that cannot be reached, unless it has been replaced already."""
        if self._is_announced and self._addresses.get(rank) == address:
            del self._addresses[rank]

    def _check(self, announcement: Announcement) -> None:
        rank, address = announcement.rank, announcement.address
        if not self._is_announced:
            raise ConfigError(
                "workers: this scheduler was given their addresses, it takes no announcements"
            )
        if not 0 <= rank < self._size:
            raise InvalidRequestError("rank", f"must be in [0, {self._size - 1}], got {rank}")
        match = ADDRESS.fullmatch(address[: MAX_ADDRESS_CHARACTERS + 1])
        if (
            match is None
            or not 1 <= int(match[2]) <= 65535
            or len(address) > MAX_ADDRESS_CHARACTERS
        ):
            raise InvalidRequestError(
                "address",
                f"must be HOST:PORT of at most {MAX_ADDRESS_CHARACTERS} characters with a port in "
                f"[1, 65535], got {address[:MAX_ADDRESS_CHARACTERS]!r}",
            )
