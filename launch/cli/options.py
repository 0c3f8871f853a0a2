"""Options that several commands share, with vLLM's names. One definition, one help text."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quire.observe.admin import AdminConfig
    from quire.rpc import Role, TlsFiles


class DType(StrEnum):
    """Type of weights, activations and cache."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class KvCacheDType(StrEnum):
    """What the KV cache holds."""

    AUTO = "auto"
    FP8 = "fp8"
    INT8 = "int8"


class LoadFormat(StrEnum):
    """Where weights come from."""

    SAFETENSORS = "safetensors"
    DUMMY = "dummy"


class PreemptionModeName(StrEnum):
    """What becomes of the cache of a preempted request."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class RoutingPolicyName(StrEnum):
    """How a router chooses a cell."""

    PREFIX_AWARE = "prefix-aware"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


class LogLevel(StrEnum):
    """Least severe log line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Host = Annotated[str, typer.Option(help="Address to listen on, and no other.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        help="Port for metrics and probes over plain HTTP: /metrics, /livez, /readyz. 0 takes a "
        "free one.",
        show_default="none",
    ),
]
AdminHost = Annotated[str, typer.Option(help="Address that --admin-port listens on, and no other.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="Least severe log line to write.")]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        "--otlp-endpoint",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        metavar="URL",
        help="OpenTelemetry collector to send traces to over OTLP/gRPC, as http://HOST:4317.",
        show_default="none: no traces",
    ),
]
TlsDir = Annotated[
    str | None,
    typer.Option(
        "--tls-dir",
        envvar="QUIRE_TLS_DIR",
        metavar="DIR",
        help="Encrypt and authenticate every connection, with the ca.crt, tls.crt and tls.key of "
        "this directory, or of the one for this role in a directory of `quire certs`. They are "
        "read again when they change.",
        show_default="in the clear",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="QUIRE_INSECURE",
        help="Listen beyond this machine without --tls-dir: on a private network only.",
    ),
]
ReadyFd = Annotated[
    int | None,
    typer.Option(hidden=True, help="Pipe on which to tell the parent process how the start went."),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL_DIR",
        help="Hugging Face model directory. Without one, the embedded demo model.",
        show_default=False,
    ),
]
ServedModelName = Annotated[
    str | None,
    typer.Option(help="Name that requests use.", show_default="name of the directory"),
]
DTypeOption = Annotated[DType, typer.Option("--dtype", help="'auto' takes the model's own type.")]
LoadFormatOption = Annotated[
    LoadFormat,
    typer.Option("--load-format", help="'dummy' makes weights up, for benchmarks."),
]
KvCacheDTypeOption = Annotated[
    KvCacheDType,
    typer.Option(
        "--kv-cache-dtype",
        help="What the KV cache holds: 'auto' the model's own type; a byte for each element, so "
        "that twice as much fits, as 'fp8' on a GPU or 'int8' on the CPU.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where workers compute: 'cpu', 'cuda' or 'cuda:N'. 'auto' takes a GPU if there is one."
    ),
]
Invariant = Annotated[
    bool,
    typer.Option(
        "--invariant",
        help="Layers whose bits depend neither on the number of workers nor, on a GPU too, on the "
        "batch, so that nothing changes an answer; slower.",
    ),
]
DistributedTimeoutS = Annotated[
    float,
    typer.Option(
        "--distributed-timeout-s",
        help="How long workers that share a model wait for each other in any exchange.",
    ),
]
EnforceEager = Annotated[
    bool, typer.Option("--enforce-eager", help="No CUDA graphs: less memory, slower decoding.")
]
GpuMemoryUtilization = Annotated[
    float,
    typer.Option(
        "--gpu-memory-utilization",
        help="Share of a GPU's memory for weights, activations and KV cache together.",
    ),
]
BlockSize = Annotated[
    int, typer.Option(help="Tokens in a block of the KV cache: a power of two, 8 to 256.")
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of one sequence, prompt and output.",
        show_default="what the model says and the cache holds",
    ),
]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Most tokens computed in one step.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Most sequences running at once.")]
MaxWaiting = Annotated[
    int, typer.Option(help="Most requests waiting; more are refused until some have run.")
]
MaxStepsInFlight = Annotated[
    int,
    typer.Option(
        help="2 sends a step before the result of the one before it is back, so that workers need "
        "not wait; 1 does not. The tokens are the same."
    ),
]
EnablePrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Let requests share the cache blocks of a prefix that was computed before.",
    ),
]
PreemptionModeOption = Annotated[
    PreemptionModeName,
    typer.Option(
        "--preemption-mode",
        help="What becomes of the cache of a preempted request: 'swap' moves it to host memory, "
        "'recompute' drops it, 'auto' does what is cheaper.",
    ),
]
SwapSpace = Annotated[
    float | None,
    typer.Option(
        "--swap-space",
        help="Host memory for preempted requests, in GiB, for each worker.",
        show_default="a share of what is free",
    ),
]
PriorityAgeingS = Annotated[
    float,
    typer.Option(
        "--priority-ageing-s",
        help="A request may be overtaken by those that come up to so many seconds later, for each "
        "level of priority between them.",
    ),
]
KvCacheGib = Annotated[
    float | None,
    typer.Option(
        "--kv-cache-gib",
        help="Memory for the KV cache of each worker, in GiB.",
        show_default="a share of what is free",
    ),
]
NumGpuBlocksOverride = Annotated[
    int | None,
    typer.Option(help="Blocks of the KV cache, whatever profiling says.", show_default="profiled"),
]
NumThreads = Annotated[
    int | None,
    typer.Option(help="Threads of each worker.", show_default="the cores of this machine"),
]
ApiKeys = Annotated[
    Path | None,
    typer.Option(
        "--api-keys",
        envvar="QUIRE_API_KEYS",
        metavar="FILE",
        help="Take calls only with a key of this file, which `quire keys` makes.",
        show_default="calls need no key",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_API_KEY",
        metavar="KEY",
        help="Key to call with. Others on this machine may see it here; not in the environment.",
        show_default=False,
    ),
]


def admin_config(port: int | None, host: str) -> "AdminConfig | None":
    """Return where the admin port is; None without one.

    Raises:
        ConfigError: a value is out of bounds.
    """
    from quire.observe.admin import AdminConfig

    return None if port is None else AdminConfig(port, host)


def gib_to_bytes(gib: float | None) -> int | None:
    """Return GiB as bytes; None stays None."""
    return None if gib is None else int(gib * 2**30)


def open_tls(tls_dir: str | None, role: "Role") -> "TlsFiles | None":
    """Return the certificate files of --tls-dir for a role; None where there is none.

    Raises:
        ConfigError: they cannot be used.
    """
    from quire.rpc import TlsFiles

    return None if tls_dir is None else TlsFiles(tls_dir, role)
