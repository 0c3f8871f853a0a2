"""Settings of a worker process."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from quire.contract.addresses import MAX_RANKS, WILDCARD_HOSTS, check_address
from quire.contract.engine_options import DeviceOptions
from quire.contract.errors import ConfigError
from quire.contract.options import option
from quire.contract.service_options import ServiceOptions, port_option

if TYPE_CHECKING:
    from quire.rpc import TlsFiles


@dataclass(frozen=True, slots=True)
class Announcement:
    """How a worker announces itself.

    Attributes:
        scheduler: address of the scheduler, "host:port".
        rank: rank that this worker claims.
        host: host at which the scheduler and the other ranks reach this worker.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    scheduler: str
    rank: int
    host: str

    def __post_init__(self) -> None:
        check_address("announce_to", self.scheduler)
        if not 0 <= self.rank < MAX_RANKS:
            raise ConfigError(f"rank: must be in [0, {MAX_RANKS - 1}], got {self.rank}")
        if self.host in WILDCARD_HOSTS:
            raise ConfigError(
                f"advertise_host: must be a host at which others reach this worker, got {self.host}"
            )


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(DeviceOptions, ServiceOptions):
    """How a worker listens and computes; the scheduler chooses the model.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Worker"

    port: int = port_option(50053)
    announce_to: str | None = option(
        None,
        "Scheduler to which this worker reports where it is.",
        metavar="HOST:PORT",
    )
    rank: int | None = option(
        None, "Rank of this worker among those of --announce-to, counted from --rank-base."
    )
    rank_base: int = option(
        0,
        "Number that the first worker has as --rank: 1 where an orchestrator counts another pod of "
        "the group as 0.",
    )
    advertise_host: str | None = option(
        None, "Where others reach this worker.", shown_default="--host"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_incomplete = (self.announce_to is None) != (self.rank is None)
        if is_incomplete or (self.advertise_host and self.announce_to is None):
            raise ConfigError(
                "announce_to: must be given with rank, and both with advertise_host, "
                f"got {self.announce_to}, {self.rank} and {self.advertise_host}"
            )
        _ = self.announcement

    @property
    def announcement(self) -> Announcement | None:
        """How this worker announces itself; None if the scheduler is given its address.

        Raises:
            ConfigError: a value is out of bounds.
        """
        if self.announce_to is None or self.rank is None:
            return None
        host = self.advertise_host or self.host
        return Announcement(self.announce_to, self.rank - self.rank_base, host)

    @cached_property
    def tls(self) -> "TlsFiles | None":
        """Certificate of this worker; None listens and connects without TLS.

        Raises:
            ConfigError: its files cannot be used.
        """
        from quire.rpc import Role, open_tls

        return open_tls(self.tls_dir, Role.WORKER)
