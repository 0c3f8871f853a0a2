"""Options that router, scheduler and worker share: where a service listens, and how."""

from dataclasses import dataclass

from quire.contract.addresses import check_host, check_listening
from quire.contract.options import Bounds, Options, option

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "json", "text")
PORTS = Bounds(0, 65535)


def port_option(
    default: int,
    help: str = "Port to listen on; 0 takes a free one.",  # noqa: A002 - as in `option`
) -> int:
    """Return the default of a field that is the port of a service."""
    return option(default, help, bounds=PORTS)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(Options):
    """Where a service listens, with what certificate, and what it shows of itself.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Addresses, certificates and logs"

    host: str = option("127.0.0.1", "Address to listen on, and no other.")
    tls_dir: str | None = option(
        None,
        "Encrypt and authenticate every connection, with the ca.crt, tls.crt and tls.key of this "
        "directory, or of the one for this role in a directory of `quire certs`. They are read "
        "again when they change.",
        envvar="QUIRE_TLS_DIR",
        metavar="DIR",
        shown_default="in the clear",
    )
    insecure: bool = option(
        False,
        "Listen beyond this machine without --tls-dir, and exchange tensors with ranks on other "
        "machines unencrypted: on a private network only.",
        envvar="QUIRE_INSECURE",
    )
    peer_timeout_s: float = option(
        1.7,
        "How long another service of the cluster may be silent before it counts as lost.",
        unit="seconds",
        bounds=Bounds(0.5, 3600),
    )
    admin_port: int | None = option(
        None,
        "Port for metrics and probes over plain HTTP: /metrics, /livez, /readyz. 0 takes a free "
        "one.",
        bounds=PORTS,
        shown_default="none",
    )
    admin_host: str = option("127.0.0.1", "Address that --admin-port listens on, and no other.")
    otlp_endpoint: str | None = option(
        None,
        "OpenTelemetry collector to send traces to over OTLP/gRPC, as http://HOST:4317.",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        metavar="URL",
        shown_default="none: no traces",
    )
    log_level: str = option("info", "Least severe log line to write.", choices=LOG_LEVELS)
    log_format: str = option(
        "auto",
        "How log lines are written: 'json' an object each, 'text' for people; 'auto' text on a "
        "terminal and JSON elsewhere.",
        choices=LOG_FORMATS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_host("host", self.host)
        check_host("admin_host", self.admin_host)
        check_listening(self.host, self.tls_dir is not None, self.insecure)
