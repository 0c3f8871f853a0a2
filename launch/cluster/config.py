"""What `quire serve` was asked for."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import quire
from quire.contract.addresses import MAX_RANKS, check_address, check_listening
from quire.contract.errors import ConfigError
from quire.observe.admin import AdminConfig


def embedded_model() -> Path:
    """Return the directory of the demo model that ships with Quire."""
    return Path(quire.__file__).resolve().parent / "demo_model"


class LauncherName(StrEnum):
    """Where the workers come from."""

    LOCAL = "local"
    STATIC = "static"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What `quire serve` was asked for.

    Attributes:
        model: Hugging Face model directory.
        host: address every service listens on.
        port: of the router; 0 takes a free one. The other services always take free ones.
        tensor_parallel_size: number of workers that share the model.
        device: of the workers: "cpu", "cuda", "cuda:N" or "auto"; several take one GPU each.
        scheduler_args: further options of `quire scheduler`.
        api_keys: file of the keys of which calls to the router need one; None for no keys.
        num_threads: of each worker; None leaves it to the launcher.
        log_level: of all services.
        admin: where metrics and probes of the router are served; the scheduler takes the next port,
            then workers that are started here; port 0 takes free ones, and None serves none.
        launcher: where the workers come from.
        workers: addresses of running ones in order of rank, for the static launcher.
        ray_address: "host:port" or "auto" of a running Ray cluster; None starts Ray here.
        ray_cpus_per_worker: CPUs that Ray sets aside for each worker.
        tls_dir: certificates of all services: a directory of `quire certs`, or one certificate
            that has every role. None has them speak in the clear.
        insecure: whether to listen beyond this machine in the clear.
        otlp_endpoint: where all services send their traces; None has them send none.
    """

    model: Path
    host: str = "127.0.0.1"
    port: int = 50051
    tensor_parallel_size: int = 1
    device: str = "auto"
    scheduler_args: tuple[str, ...] = ()
    api_keys: Path | None = None
    num_threads: int | None = None
    log_level: str = "warning"
    admin: AdminConfig | None = None
    launcher: LauncherName = LauncherName.LOCAL
    workers: tuple[str, ...] = ()
    ray_address: str | None = None
    ray_cpus_per_worker: int = 1
    tls_dir: str | None = None
    insecure: bool = False
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"model directory {self.model} does not exist")
        check_listening(self.host, self.tls_dir is not None, self.insecure)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be in [0, 65535], got {self.port}")
        if not 1 <= self.tensor_parallel_size <= MAX_RANKS:
            raise ConfigError(
                f"--tensor-parallel-size must be in [1, {MAX_RANKS}], "
                f"got {self.tensor_parallel_size}"
            )
        if self.api_keys is not None and not self.api_keys.is_file():
            raise ConfigError(f"--api-keys: there is no file {self.api_keys}")
        self._check_static()
        self._check_ray()

    def _check_static(self) -> None:
        if self.launcher is not LauncherName.STATIC:
            if self.workers:
                raise ConfigError(
                    f"--worker: for --launcher static, got {', '.join(self.workers)} "
                    f"with --launcher {self.launcher}"
                )
            return
        if not self.workers:
            raise ConfigError("--worker: --launcher static needs the addresses of the workers")
        if self.tensor_parallel_size not in (1, len(self.workers)):
            raise ConfigError(
                f"--tensor-parallel-size must be {len(self.workers)}, the number of workers named, "
                f"got {self.tensor_parallel_size}"
            )
        if self.device != "auto" or self.num_threads is not None:
            raise ConfigError(
                "--device and --num-threads: options of `quire worker` where workers run already"
            )

    def _check_ray(self) -> None:
        if not 1 <= self.ray_cpus_per_worker <= 1024:
            raise ConfigError(
                f"--ray-cpus-per-worker must be in [1, 1024], got {self.ray_cpus_per_worker}"
            )
        if self.launcher is not LauncherName.RAY:
            if self.ray_address is not None:
                raise ConfigError(
                    f"--ray-address: for --launcher ray, got {self.ray_address} "
                    f"with --launcher {self.launcher}"
                )
            return
        if self.device not in ("cpu", "cuda", "auto"):
            raise ConfigError(
                f"--device must be cpu, cuda or auto where Ray chooses the GPU, got {self.device}"
            )
        if self.ray_address not in (None, "auto"):
            check_address("--ray-address", str(self.ray_address))

    @property
    def service_args(self) -> list[str]:
        """Options of every service."""
        return [
            *("--host", self.host, "--log-level", self.log_level),
            *(("--tls-dir", self.tls_dir) if self.tls_dir is not None else ()),
            *(("--insecure",) if self.insecure else ()),
            *(("--otlp-endpoint", self.otlp_endpoint) if self.otlp_endpoint is not None else ()),
        ]

    def admin_args(self, place: int) -> list[str]:
        """Return the options of a service's admin port.

        Args:
            place: 0 for the router, 1 for the scheduler, 2 and on for the workers.
        """
        if self.admin is None:
            return []
        port = self.admin.port and self.admin.port + place
        return ["--admin-host", self.admin.host, "--admin-port", str(port)]

    def device_of(self, rank: int) -> str:
        """Return where a rank computes: on the GPU of its number unless one is named."""
        return f"{self.device}:{rank}" if self.device in ("cuda", "auto") else self.device
