"""What `quire serve` shows: progress while starting, and how to use the cluster once it is up."""

import json
import time
from types import TracebackType
from typing import Self

from rich.console import Console

from launch.cluster.supervisor import Cluster, ClusterConfig
from quire.contract.engine_options import GIB
from quire.contract.errors import UnauthenticatedError
from quire.contract.outputs import CellStatus, ModelInfo
from quire.rpc import Role, TlsFiles
from quire.sdk.client import AsyncClient
from quire.version import __version__


class Progress:
    """A line that says what is being waited for; plain lines where the output is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("starting")
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.stop()

    def say(self, what: str) -> None:
        """Show what is being waited for now."""
        elapsed = time.monotonic() - self._began
        if self._console.is_terminal:
            self._status.update(f"{what} ...")
        else:
            self._console.print(f"[{elapsed:5.1f} s] {what}", markup=False)


async def cell_status(
    target: str,
    tls_dir: str | None = None,
    *,
    api_key: str | None = None,
    insecure: bool = False,
) -> CellStatus:
    """Return what the router at `target` knows of its first cell; arguments as of AsyncClient.

    Raises:
        UnauthenticatedError: it wants an API key, and neither argument nor environment has one.
    """
    async with AsyncClient(target, tls_dir=tls_dir, api_key=api_key, insecure=insecure) as client:
        async for cells in client.watch_cluster():
            return cells[0]
    raise AssertionError("watch_cluster sends the state at once")


def _places(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Name, address and process of each service, the router first."""
    children = [
        (service.name, service.address, f"pid {service.pid}")
        for service in reversed(cluster.services)
        if service not in cluster.launcher.services
    ]
    workers = [(each.name, each.address, each.process) for each in cluster.launcher.places]
    return children + workers


def _metrics_lines(cluster: Cluster) -> list[str]:
    """Return where each service's metrics are, the router's first."""
    return [
        f"  metrics    http://{service.admin_address}/metrics ({service.name})"
        for service in reversed(cluster.services)
        if service.admin_address
    ]


def _http_lines(cluster: Cluster) -> list[str]:
    """Return the base URL of OpenAI's API."""
    address, config = cluster.router.http_address, cluster.config
    if not address:
        return []
    if address.startswith("unix:"):
        return [f"  HTTP       {address.removeprefix('unix:')}, a Unix domain socket"]
    scheme = "http" if config.tls_dir is None and config.ssl_certfile is None else "https"
    return [f"  HTTP       {scheme}://{address}/v1 (OpenAI's and Anthropic's APIs)"]


def _model_lines(cluster: Cluster, status: CellStatus | None) -> list[str]:
    if status is None:
        return [f"Quire {__version__} serves {cluster.config.model.name}"]
    model, state = status.model, status.state
    assert model is not None, "a router is ready once it knows the model"
    tokens = state.num_blocks * state.block_size
    size = (
        f"{state.kv_cache_bytes / GIB:.2f} GiB (--kv-cache-gib): " if state.kv_cache_bytes else ""
    )
    return [
        f"Quire {__version__} serves {model.name}",
        f"  model      {model.architecture}, {_precision(model)}, "
        f"{model.num_parameters / 1e6:,.1f} M parameters, up to {model.max_model_len:,} tokens",
        f"  ids        numerics {model.numerics_id or 'none'}, text {model.text_id or 'none'}",
        f"  KV cache   {size}{state.num_blocks:,} blocks of {state.block_size} = {tokens:,} tokens "
        f"({tokens / model.max_model_len:,.1f} requests of full length at once)",
    ]


def _precision(model: ModelInfo) -> str:
    """Return the type of a model, and how its weights are held if it is not in that."""
    return model.dtype if model.quantization == "none" else f"{model.dtype} {model.quantization}"


def _lines_to_paste(config: ClusterConfig, target: str, http_address: str) -> list[str]:
    """Return commands that send a request; where a key is wanted, with QUIRE_API_KEY's.

    Args:
        config: of the cluster.
        target: address of its router.
        http_address: of the router's HTTP port; empty if it has none.
    """
    body = json.dumps({"text": "The list class", "samplingParams": {"maxTokens": 32}})
    method = "quire.v1.InferenceService/Generate"
    generate, grpcurl, buf, scheme = "", "-plaintext ", "--http2-prior-knowledge ", "http"
    curl, url = "", f"http://{http_address}"
    if config.tls_dir is not None:
        directory = TlsFiles(config.tls_dir, Role.CLIENT).directory
        generate = f"--tls-dir {config.tls_dir} "
        options = {
            "cacert": directory / "ca.crt",
            "cert": directory / "tls.crt",
            "key": directory / "tls.key",
            "servername": Role.ROUTER,
        }
        grpcurl = "".join(f"-{name} {value} " for name, value in options.items())
        buf, scheme = "".join(f"--{name} {value} " for name, value in options.items()), "https"
        del options["servername"]
        curl = "".join(f"--{name} {value} " for name, value in options.items())
        curl, url = f"{curl}--connect-to ::{http_address} ", f"https://{Role.ROUTER}"
    if config.ssl_certfile is not None:
        curl, url = f"--cacert {config.ssl_certfile} ", f"https://{http_address}"
    elif http_address.startswith("unix:"):
        curl, url = f"--unix-socket {http_address.removeprefix('unix:')} ", "http://localhost"
    if config.api_keys is not None or config.api_key:
        header = '-H "authorization: Bearer $QUIRE_API_KEY" '
        grpcurl, buf, curl = grpcurl + header, buf + header, curl + header
    over_http = json.dumps({"prompt": "The list class", "max_tokens": 32})
    curl += f"-H 'content-type: application/json' -d '{over_http}' {url}/v1/completions"
    return [
        f"  quire generate {generate}--target {target} 'The list class'",
        *([f"  curl {curl}"] if http_address else []),
        f"  grpcurl {grpcurl}-d '{body}' {target} {method}",
        f"  buf curl --protocol grpc {buf}-d '{body}' {scheme}://{target}/{method}",
    ]


async def print_ready(cluster: Cluster, control: str = "") -> None:
    """Print model, cache, addresses and lines to paste.

    Args:
        cluster: that serves.
        control: address of its control port; empty if it has none.
    """
    config, target = cluster.config, cluster.router.address
    try:
        key = next(iter(config.api_key), None)
        status = await cell_status(target, config.tls_dir, api_key=key, insecure=config.insecure)
    except UnauthenticatedError:
        status = None
    lines = [
        *_model_lines(cluster, status),
        *(
            f"  {name:<10} {address}{f' ({process})' if process else ''}"
            for name, address, process in _places(cluster)
        ),
        *([f"  control    {control} (quire resize, quire roll)"] if control else []),
        *_http_lines(cluster),
        *_metrics_lines(cluster),
        "Try, with a key in QUIRE_API_KEY:" if config.api_keys or config.api_key else "Try:",
        *_lines_to_paste(config, target, cluster.router.http_address),
        "Ctrl-C stops everything.",
    ]
    Console(highlight=False, soft_wrap=True).print("\n".join(lines), markup=False)
