"""What `quire serve` was asked for."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import quire
from quire.contract.addresses import MAX_RANKS, check_address
from quire.contract.engine_options import DeviceOptions, EngineOptions
from quire.contract.errors import ConfigError, ModelLoadError
from quire.contract.options import Bounds, option, same_option, values_of
from quire.contract.service_options import PORTS, ServiceOptions, port_option
from quire.gguf_file import is_model
from quire.tokenizer_files import require_tokenizer
from router.config import RouterConfig
from router.front_options import FrontOptions


def embedded_model() -> Path:
    """Return the directory of the demo model that ships with Quire."""
    return Path(quire.__file__).resolve().parent / "demo_model"


class LauncherName(StrEnum):
    """Where the workers come from."""

    LOCAL = "local"
    STATIC = "static"
    RAY = "ray"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(EngineOptions, DeviceOptions, FrontOptions, ServiceOptions):
    """What `quire serve` was asked for. All services listen on `host`.

    Attributes:
        model: Hugging Face model directory, or a GGUF file.
        port: None has no HTTP.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Cluster"

    model: Path
    port: int | None = option(
        8000,  # where vLLM's users look for it
        "Port for the APIs of OpenAI and Anthropic over HTTP; 0 takes a free one.",
        bounds=PORTS,
    )
    grpc_port: int = port_option(50051, "Port for Quire's own API over gRPC; 0 takes a free one.")
    control_port: int = port_option(
        0, "Port of this machine for `quire resize`; 0 takes a free one."
    )
    tensor_parallel_size: int = option(
        1,
        "Workers that share the model.",
        bounds=Bounds(1, MAX_RANKS),
        flags=("--tensor-parallel-size", "-tp"),
    )
    shutdown_timeout_s: float = same_option(
        RouterConfig,
        "drain_timeout_s",
        default=1.0,
        help="How long what runs may take to end when the cluster is stopped.",
    )
    hang_timeout_s: float = option(
        20.0,
        "How long a service that is up may leave health checks unanswered before it is killed and "
        "started again.",
        unit="seconds",
        bounds=Bounds(1, 86_400),
    )
    launcher: str = option(
        LauncherName.LOCAL,
        "Where workers come from: 'local' starts them here, 'ray' in a Ray cluster, 'static' takes "
        "running ones.",
        choices=LauncherName,
    )
    workers: tuple[str, ...] = option(
        (),
        "A running worker, in order of rank; repeat. For --launcher static.",
        flags=("--worker",),
        metavar="HOST:PORT",
    )
    ray_address: str | None = option(
        None,
        "A running Ray cluster. For --launcher ray.",
        metavar="HOST:PORT|auto",
        shown_default="a Ray of its own, here",
    )
    ray_cpus_per_worker: int = option(
        1, "CPUs that Ray sets aside for each worker.", bounds=Bounds(1, 1024)
    )
    admin_port: int | None = same_option(
        ServiceOptions,
        "admin_port",
        help="Port for metrics and probes of the router; the scheduler takes the next, then the "
        "workers. 0 takes free ones.",
    )
    log_level: str = same_option(ServiceOptions, "log_level", default="warning")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_model(self.model):
            raise ConfigError(
                f"model: must be a directory or a .gguf file that exists, got {self.model}"
            )
        if (self.model / "config.json").is_file():
            # Before anything is started: the router, which needs it, comes last.
            try:
                require_tokenizer(self.model)
            except ModelLoadError as error:
                raise ConfigError(error.message) from None
        if self.api_keys is not None and not self.api_keys.is_file():
            raise ConfigError(f"api_keys: must be a file that exists, got {self.api_keys}")
        self._check_static()
        self._check_ray()

    def _check_static(self) -> None:
        if self.launcher != LauncherName.STATIC:
            if self.workers:
                raise ConfigError(
                    "workers: must be empty unless launcher is static, "
                    f"got {', '.join(self.workers)} with launcher {self.launcher}"
                )
            return
        if not self.workers:
            raise ConfigError("workers: must be given with launcher static, got none")
        if self.tensor_parallel_size not in (1, len(self.workers)):
            raise ConfigError(
                f"tensor_parallel_size: must be {len(self.workers)}, the number of workers named, "
                f"got {self.tensor_parallel_size}"
            )
        for name, value, default in (
            ("device", self.device, "auto"),
            ("num_threads", self.num_threads, None),
        ):
            if value != default:
                raise ConfigError(
                    f"{name}: must be an option of `quire worker` with launcher static, got {value}"
                )

    def _check_ray(self) -> None:
        if self.launcher != LauncherName.RAY:
            if self.ray_address is not None:
                raise ConfigError(
                    "ray_address: must be empty unless launcher is ray, "
                    f"got {self.ray_address} with launcher {self.launcher}"
                )
            return
        if self.device not in ("cpu", "cuda", "auto"):
            raise ConfigError(
                f"device: must be cpu, cuda or auto where Ray chooses the GPU, got {self.device}"
            )
        if self.ray_address not in (None, "auto"):
            check_address("ray_address", str(self.ray_address))

    def service_values(self, place: int) -> dict[str, Any]:
        """Return the options that every service has.

        Args:
            place: 0 for the router, 1 for the scheduler, 2 and on for the workers; their admin
                ports follow one another.
        """
        port = self.admin_port and self.admin_port + place
        return {**values_of(self, ServiceOptions), "admin_port": port}

    def device_of(self, rank: int) -> str:
        """Return where a rank computes: on the GPU of its number unless one is named."""
        return f"{self.device}:{rank}" if self.device in ("cuda", "auto") else self.device
