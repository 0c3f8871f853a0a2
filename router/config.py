"""Settings of a router."""

from dataclasses import dataclass
from pathlib import Path

from quire.contract.addresses import check_address, check_listening
from quire.contract.errors import ConfigError
from quire.observe.admin import AdminConfig
from quire.observe.log import LEVELS
from quire.rpc import TlsFiles
from router.cells.choice import RoutingPolicy

ROUTING_POLICIES = tuple(RoutingPolicy)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What `quire router` was asked for.

    Attributes:
        model: directory that holds the tokenizer; weights are not read.
        schedulers: addresses "host:port" of the cells' schedulers.
        scheduler_dns: names "host:port"; each address that they resolve to is a cell.
        dns_interval_s: how often they are resolved.
        routing_policy: how a cell is chosen: "prefix-aware", "least-loaded" or "round-robin".
        host: address to listen on, and no other.
        port: to listen on; 0 takes a free one.
        max_prompt_bytes: longest text of a request, in bytes of UTF-8; longer ones are refused
            before any work.
        max_queued_texts: texts that wait for a tokenizer thread; more are refused until some are
            done.
        tokenizer_threads: threads that turn text into tokens and back.
        connect_timeout_s: how long a new request waits for a scheduler.
        recovery_timeout_s: how long an admitted request waits for one, after its scheduler was
            lost.
        admin: where metrics and probes are served; None serves none.
        api_keys: file of the keys of which a call needs one; None lets everybody call.
        drain_delay_s: how long a router that is asked to end still takes new requests, for those
            who choose routers by their health to hear of it.
        drain_timeout_s: how long it then finishes what runs.
        log_level: least severe log line that is written.
        tls: certificate of this router; None speaks in the clear, to schedulers too.
        client_certificates: whether clients must show a certificate, where there is `tls`.
        insecure: whether to listen beyond this machine in the clear.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    model: str
    schedulers: tuple[str, ...] = ("127.0.0.1:50052",)
    scheduler_dns: tuple[str, ...] = ()
    dns_interval_s: float = 5.0
    routing_policy: str = RoutingPolicy.PREFIX_AWARE
    host: str = "127.0.0.1"
    port: int = 50051
    max_prompt_bytes: int = 2**20
    max_queued_texts: int = 256
    tokenizer_threads: int = 2
    connect_timeout_s: float = 10.0
    recovery_timeout_s: float = 60.0
    api_keys: Path | None = None
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 30.0
    log_level: str = "info"
    tls: TlsFiles | None = None
    client_certificates: bool = True
    insecure: bool = False
    admin: AdminConfig | None = None

    def __post_init__(self) -> None:
        if not Path(self.model).is_dir():
            raise ConfigError(f"model: directory {self.model} does not exist")
        if not self.schedulers and not self.scheduler_dns:
            raise ConfigError("schedulers: at least one address or scheduler_dns name, got none")
        _check_addresses("schedulers", self.schedulers)
        _check_addresses("scheduler_dns", self.scheduler_dns)
        _check("dns_interval_s", self.dns_interval_s, 0.1, 3600)
        if self.routing_policy not in ROUTING_POLICIES:
            raise ConfigError(
                f"routing_policy: one of {', '.join(ROUTING_POLICIES)}, got {self.routing_policy}"
            )
        _check("port", self.port, 0, 65535)
        check_listening(self.host, self.tls is not None, self.insecure)
        if self.tls is None and not self.client_certificates:
            raise ConfigError("client_certificates: without tls_dir nobody is asked for one")
        _check("max_prompt_bytes", self.max_prompt_bytes, 1, 2**24)
        _check("max_queued_texts", self.max_queued_texts, 1, 2**20)
        _check("tokenizer_threads", self.tokenizer_threads, 1, 256)
        _check("connect_timeout_s", self.connect_timeout_s, 0, 3600)
        _check("recovery_timeout_s", self.recovery_timeout_s, 0, 3600)
        _check("drain_delay_s", self.drain_delay_s, 0, 3600)
        _check("drain_timeout_s", self.drain_timeout_s, 0, 86_400)
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level: one of {', '.join(LEVELS)}, got {self.log_level}")

    @property
    def max_request_bytes(self) -> int:
        """Largest message read from a client: a prompt as text or as token ids, and the rest."""
        return 4 * self.max_prompt_bytes + 2**16


def _check_addresses(field: str, addresses: tuple[str, ...]) -> None:
    for address in addresses:
        check_address(field, address)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"{field}: each once, got {', '.join(addresses)}")


def _check(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{field}: must be in [{low}, {high}], got {value}")
