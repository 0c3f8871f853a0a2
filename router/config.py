"""Settings of a router."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from quire.contract.addresses import check_addresses
from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, option
from quire.contract.service_options import PORTS, ServiceOptions, port_option
from quire.gguf_file import is_model
from router.cells.choice import RoutingPolicy
from router.front_options import FrontOptions

if TYPE_CHECKING:
    from quire.rpc import TlsFiles

DEFAULT_SCHEDULER = "127.0.0.1:50052"


@dataclass(frozen=True, kw_only=True)
class RouterConfig(FrontOptions, ServiceOptions):
    """What `quire router` was asked for.

    Attributes:
        model: directory that holds the tokenizer; weights are not read.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Router"

    model: str
    schedulers: tuple[str, ...] = option(
        (),
        "The scheduler of a cell; repeat.",
        flags=("--scheduler",),
        metavar="HOST:PORT",
        shown_default=f"{DEFAULT_SCHEDULER}, without --scheduler-dns",
    )
    scheduler_dns: tuple[str, ...] = option(
        (),
        "A name each of whose addresses is a cell; cells come and go with them. Repeat.",
        metavar="NAME:PORT",
    )
    dns_interval_s: float = option(
        5.0, "How often these names are resolved.", unit="seconds", bounds=Bounds(0.1, 3600)
    )
    routing_policy: str = option(
        RoutingPolicy.PREFIX_AWARE,
        f"How a cell is chosen: {', '.join(f'{each.help} ({each})' for each in RoutingPolicy)}.",
        choices=RoutingPolicy,
    )
    port: int = port_option(50051)
    http_port: int | None = option(
        None,
        "Port for OpenAI's API over HTTP; 0 takes a free one.",
        bounds=PORTS,
        shown_default="none",
    )
    http_body_timeout_s: float = option(
        30.0,
        "How long the body of a request over HTTP may take to come.",
        unit="seconds",
        bounds=Bounds(0.01, 3600),
        internal=True,
    )
    drain_delay_s: float = option(
        0.0,
        "How long a router that gets SIGTERM still takes requests while it reports that it does "
        "not serve, so that load balancers notice.",
        unit="seconds",
        bounds=Bounds(0, 3600),
    )
    drain_timeout_s: float = option(
        30.0, "How long it then finishes what runs.", unit="seconds", bounds=Bounds(0, 86_400)
    )
    client_certificates: bool = option(
        True, "Whether clients must show a certificate; without, give them API keys."
    )
    max_prompt_bytes: int = option(
        2**20,
        "Longest text of a request, as UTF-8; longer ones are refused before any work.",
        unit="bytes",
        bounds=Bounds(1, 2**24),
        internal=True,
    )
    max_queued_texts: int = option(
        256,
        "Texts that wait for a tokenizer thread; more are refused until some are done.",
        bounds=Bounds(1, 2**20),
        internal=True,
    )
    tokenizer_threads: int = option(
        2, "Threads that turn text into tokens and back.", bounds=Bounds(1, 256), internal=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_model(Path(self.model)):
            raise ConfigError(
                f"model: must be a directory or a .gguf file that exists, got {self.model}"
            )
        check_addresses("schedulers", self.schedulers)
        check_addresses("scheduler_dns", self.scheduler_dns)
        if self.tls_dir is None and not self.client_certificates:
            raise ConfigError("client_certificates: must be true without tls_dir, got false")

    @property
    def scheduler_addresses(self) -> tuple[str, ...]:
        """Addresses of the cells' schedulers, beside those that names resolve to."""
        return self.schedulers or (() if self.scheduler_dns else (DEFAULT_SCHEDULER,))

    @property
    def max_request_bytes(self) -> int:
        """Largest message read from a client: a prompt as text or as token ids, and the rest."""
        return 4 * self.max_prompt_bytes + 2**16

    @cached_property
    def tls(self) -> "TlsFiles | None":
        """Certificate of this router; None speaks in the clear, to schedulers too.

        Raises:
            ConfigError: its files cannot be used.
        """
        from quire.rpc import Role, open_tls

        return open_tls(self.tls_dir, Role.ROUTER)
