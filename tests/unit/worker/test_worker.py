"""A worker over its life: what it keeps and what it lets go."""

import os
import weakref

import pytest

from launch.cluster.supervisor import embedded_model
from quire.contract.engine_options import CacheOptions
from quire.contract.workers import CacheSpec, LoadSpec
from worker_svc.device.cpu import CpuDevice
from worker_svc.worker import EXIT_DEVICE_LOST, Worker


def test_a_new_cache_takes_the_place_of_the_one_before() -> None:
    """A scheduler that comes back allocates again; the worker must not hold both caches."""
    worker = Worker(num_threads=1)
    worker.load_model(LoadSpec(str(embedded_model())), "demo")
    caches = []
    for _ in range(3):
        assert worker.init_cache(CacheSpec(32, CacheOptions(swap_space=2**-10))).num_blocks > 0
        runner = worker._runner
        assert runner is not None
        caches.append(weakref.ref(runner.cache_engine.caches.stored[0][0]))
        del runner
    assert [cache() is None for cache in caches] == [True, True, False]


def test_a_worker_whose_device_is_lost_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors would come again at every call; another process may find the device well."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    device = CpuDevice()
    worker = Worker(device)
    worker.exit_if_device_is_lost()
    assert ended == []
    monkeypatch.setattr(device, "is_lost", lambda: True)
    worker.exit_if_device_is_lost()
    assert ended == [EXIT_DEVICE_LOST]
