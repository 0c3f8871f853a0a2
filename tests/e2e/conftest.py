"""Real clusters: every service a child process, found by what it reports, stopped by its pid."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.cluster import Cluster, ClusterConfig, embedded_model

StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


@asynccontextmanager
async def running_cluster(model: Path | None = None, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster with a small cache, on free ports, stopped on the way out.

    Args:
        model: the demo model if None.
        options: of ClusterConfig.
    """
    cluster = Cluster(
        ClusterConfig(
            **{"model": model or embedded_model(), "port": 0, "kv_cache_gib": 0.03125, **options}
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
