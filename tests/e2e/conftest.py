"""Real clusters: every service a child process, found by what it reports, stopped by its pid."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from quire.cli.cluster import Cluster, ClusterConfig, embedded_model

StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


@asynccontextmanager
async def running_cluster(
    model: Path | None = None, *scheduler_args: str, tensor_parallel_size: int = 1
) -> AsyncIterator[Cluster]:
    """A cluster with a small cache, on free ports, stopped on the way out."""
    cluster = Cluster(
        ClusterConfig(
            model=model or embedded_model(),
            port=0,
            tensor_parallel_size=tensor_parallel_size,
            scheduler_args=("--kv-cache-gib", "0.03125", *scheduler_args),
        )
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


@pytest.fixture
def start_cluster() -> StartCluster:
    return running_cluster
