"""Settings of a scheduler."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from quire.contract.addresses import MAX_RANKS, check_addresses
from quire.contract.engine_options import EngineOptions
from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, option
from quire.contract.service_options import ServiceOptions, port_option

if TYPE_CHECKING:
    from quire.rpc import TlsFiles


class MoveBlocks(StrEnum):
    """Whether blocks of requests that come from other cells are fetched there."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


DEFAULT_WORKER = "127.0.0.1:50053"


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(EngineOptions, ServiceOptions):
    """What `quire scheduler` was asked for.

    Attributes:
        model: model directory, as the workers see it.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Cell"

    model: str
    workers: tuple[str, ...] = option(
        (),
        "A worker, in order of rank; repeat.",
        flags=("--worker",),
        metavar="HOST:PORT",
        shown_default=DEFAULT_WORKER,
    )
    tensor_parallel_size: int | None = option(
        None,
        "Workers that announce themselves, where no --worker is named.",
        bounds=Bounds(1, MAX_RANKS),
        flags=("--tensor-parallel-size", "-tp"),
    )
    port: int = port_option(50052)
    drain_timeout_s: float = option(
        30.0,
        "How long a cell that is taken out of service, by SIGTERM or `quire drain`, finishes what "
        "it has; the rest then continues on other cells.",
        unit="seconds",
        bounds=Bounds(0, 86_400),
    )
    move_blocks: str = option(
        MoveBlocks.AUTO,
        "What becomes of the cache of a request that moves here from another cell: 'always' "
        "fetches its blocks there, 'never' computes them again, 'auto' does what is cheaper.",
        choices=MoveBlocks,
    )
    watermark: float = option(
        0.01,
        "Share of the cache that admission leaves free.",
        bounds=Bounds(0, 1, excludes_high=True),
        internal=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise ConfigError("model: must be a directory or a .gguf file, got an empty name")
        if len(self.workers) > MAX_RANKS:
            raise ConfigError(
                f"workers: must be at most {MAX_RANKS} addresses, got {len(self.workers)}"
            )
        check_addresses("workers", self.workers)
        if self.workers and self.tensor_parallel_size not in (None, len(self.workers)):
            raise ConfigError(
                f"tensor_parallel_size: must be {len(self.workers)}, the number of workers named, "
                f"got {self.tensor_parallel_size}"
            )

    @property
    def model_name(self) -> str:
        """Name that requests use."""
        return self.served_model_name or Path(self.model).name

    @property
    def worker_addresses(self) -> tuple[str, ...]:
        """Addresses of the workers, in order of rank; none where they announce themselves."""
        if self.workers or self.tensor_parallel_size is not None:
            return self.workers
        return (DEFAULT_WORKER,)

    @property
    def waits_for_announcements(self) -> bool:
        """Whether the workers announce themselves."""
        return not self.worker_addresses

    @property
    def num_ranks(self) -> int:
        """Workers over which the model is split."""
        return len(self.worker_addresses) or self.tensor_parallel_size or 1

    @cached_property
    def tls(self) -> "TlsFiles | None":
        """Certificate of this scheduler; None speaks in the clear, to workers too.

        Raises:
            ConfigError: its files cannot be used.
        """
        from quire.rpc import Role, open_tls

        return open_tls(self.tls_dir, Role.SCHEDULER)
