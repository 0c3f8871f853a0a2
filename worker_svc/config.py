"""Settings of a worker process."""

import re
from dataclasses import dataclass

from quire.contract.addresses import MAX_RANKS, WILDCARD_HOSTS, check_address, check_listening
from quire.contract.errors import ConfigError
from quire.observe.admin import AdminConfig
from quire.observe.log import LEVELS
from quire.rpc import TlsFiles

DEFAULT_PORT = 50053
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a worker that announces itself tells, and to whom.

    Attributes:
        scheduler: its address, "host:port".
        rank: that this worker claims.
        host: at which the scheduler and the other ranks reach this worker.

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
                f"advertise_host: nobody can connect to {self.host}; name the host at which others "
                "reach this worker"
            )


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker listens and computes; which model it serves is the scheduler's business.

    Attributes:
        host: address to bind, and no other.
        port: 0 takes a free one.
        device: "cpu", "cuda" or "cuda:N"; "auto" or "auto:N" takes that GPU if there is one.
        num_threads: threads of the kernels and dense layers; None takes one per available core.
        log_level: one of quire.observe.log.LEVELS.
        announcement: for a worker that tells the scheduler where it is; None for one whose address
            the scheduler is given.
        tls: certificate of this worker; None speaks in the clear, to the scheduler too.
        insecure: whether to listen beyond this machine in the clear.
        admin: where metrics and probes are served; None serves none.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    device: str = "cpu"
    num_threads: int | None = None
    log_level: str = "info"
    admin: AdminConfig | None = None
    announcement: Announcement | None = None
    tls: TlsFiles | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("host: must not be empty")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: must be in [0, 65535], got {self.port}")
        check_listening(self.host, self.tls is not None, self.insecure)
        if re.fullmatch(r"cpu|(cuda|auto)(:\d+)?", self.device) is None:
            raise ConfigError(f"device: must be cpu, cuda, cuda:N or auto, got {self.device!r}")
        if self.num_threads is not None and not 1 <= self.num_threads <= MAX_THREADS:
            raise ConfigError(f"num_threads: must be in [1, {MAX_THREADS}], got {self.num_threads}")
        if self.log_level not in LEVELS:
            raise ConfigError(
                f"log_level: must be one of {', '.join(LEVELS)}, got {self.log_level!r}"
            )
