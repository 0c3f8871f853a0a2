"""Real clusters: every service a child process, found by what it reports, stopped by its pid."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from launch.cluster.thread import ClusterThread

# Each holds the memory of its processes.
MAX_SHARED = 2

StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


def cluster_config(model: Path | None = None, **options: Any) -> ClusterConfig:
    """A small cache, free ports and one thread for each worker; see `running_cluster`.

    Threads that share the cores with other tests spend more on waking each other than they compute.
    """
    own: dict[str, Any] = {"port": None, "grpc_port": 0, "kv_cache_gib": 0.03125, "num_threads": 1}
    return ClusterConfig(**{"model": model or embedded_model(), **own, **options})


@asynccontextmanager
async def running_cluster(model: Path | None = None, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster with a small cache, on free ports, stopped on the way out.

    Args:
        model: the demo model if None.
        options: of ClusterConfig.
    """
    cluster = Cluster(cluster_config(model, **options))
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


class SharedClusters:
    """Clusters that several tests use, one of each configuration, each started when first needed.

    A test must leave its cluster idle and whole; one may kill a service and wait for its return.
    """

    def __init__(self) -> None:
        self._clusters: dict[object, ClusterThread] = {}

    def get(self, **options: Any) -> Cluster:
        """Return the cluster of the demo model with these options of ClusterConfig, ready."""
        key = tuple(sorted(options.items()))
        shared = self._clusters.pop(key, None)
        if shared is None:
            while len(self._clusters) >= MAX_SHARED:
                self._stop(next(iter(self._clusters)))
            shared = ClusterThread(cluster_config(**options))
        # The last in the dictionary is the last that was used.
        self._clusters[key] = shared
        return shared.cluster

    def stop(self) -> None:
        """Stop every cluster."""
        for key in list(self._clusters):
            self._stop(key)

    def _stop(self, key: object) -> None:
        self._clusters.pop(key).stop()


@pytest.fixture(scope="session")
def shared_clusters() -> Iterator[SharedClusters]:
    clusters = SharedClusters()
    yield clusters
    clusters.stop()


@pytest.fixture
def start_cluster() -> StartCluster:
    return running_cluster
