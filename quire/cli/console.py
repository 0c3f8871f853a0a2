"""What `quire serve` shows: progress while starting, and how to use the cluster once it is up."""

import json
import time
from types import TracebackType
from typing import Self

from rich.console import Console

from quire import __version__
from quire.cli.cluster import Cluster
from quire.client import AsyncClient
from quire.outputs import CellStatus


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


async def cell_status(target: str, tls_dir: str | None = None) -> CellStatus:
    """Return what the router at `target` knows of its first cell."""
    async with AsyncClient(target, tls_dir=tls_dir) as client:
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


async def print_ready(cluster: Cluster) -> None:
    """Print model, cache, addresses and lines to paste."""
    target = cluster.router.address
    status = await cell_status(target, cluster.config.tls_dir)
    model, state = status.model, status.state
    assert model is not None, "a router is ready once it knows the model"
    tokens = state.num_blocks * state.block_size
    body = json.dumps({"text": "The list class", "samplingParams": {"maxTokens": 32}})
    method = "quire.v1.InferenceService/Generate"
    lines = [
        f"Quire {__version__} serves {model.name}",
        f"  model      {model.architecture}, {model.dtype}, "
        f"{model.num_parameters / 1e6:,.1f} M parameters, up to {model.max_model_len:,} tokens",
        f"  KV cache   {state.num_blocks:,} blocks of {state.block_size} = {tokens:,} tokens "
        f"({tokens / model.max_model_len:,.1f} requests of full length at once)",
        *(
            f"  {name:<10} {address}{f' ({process})' if process else ''}"
            for name, address, process in _places(cluster)
        ),
        "Try:",
        f"  quire generate --target {target} 'The list class'",
        f"  grpcurl -plaintext -d '{body}' {target} {method}",
        f"  buf curl --protocol grpc --http2-prior-knowledge -d '{body}' http://{target}/{method}",
        "Ctrl-C stops everything.",
    ]
    Console(highlight=False, soft_wrap=True).print("\n".join(lines), markup=False)
