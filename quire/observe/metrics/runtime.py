"""What every service reports about its process: version, event loop, garbage collector, memory."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from quire.observe.metrics.families import gauge, histogram
from quire.observe.metrics.histogram import PAUSE_BOUNDS_S, Histogram
from quire.version import __version__

LAG_INTERVAL_S = 0.25


class RuntimeCollector(Collector):
    """Watches the event loop and the garbage collector from `start` to `stop`.

    Args:
        service: "router", "scheduler" or "worker".
        is_ready: returns what the service's health reports.
        certificate_expiry: seconds since 1970 at which its certificate ends, None without one.
    """

    def __init__(
        self,
        service: str,
        is_ready: Callable[[], bool],
        certificate_expiry: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._service = service
        self._is_ready = is_ready
        self._certificate_expiry = certificate_expiry
        self._lag = Histogram(PAUSE_BOUNDS_S)
        self._pauses = [Histogram(PAUSE_BOUNDS_S) for _ in gc.get_stats()]
        self._pause_began = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # A registry of its own, not the library's global one, which any package may add to.
        self._process = ProcessCollector(registry=CollectorRegistry())

    def start(self) -> None:
        """Begin to watch; to be called on the event loop."""
        gc.callbacks.append(self._collection)
        self._loop = asyncio.get_running_loop()
        self._watch = asyncio.create_task(self._watch_loop())

    async def stop(self) -> None:
        """Watch no more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            gc.callbacks.remove(self._collection)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch_loop(self) -> None:
        """See by how much a timer is late."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.observe(max(0.0, loop.time() - due))

    def _collection(self, phase: str, info: dict[str, Any]) -> None:
        # Collections do not nest, and hold the interpreter's lock from start to stop.
        if phase == "start":
            self._pause_began = time.perf_counter()
        else:
            self._pauses[info["generation"]].observe(time.perf_counter() - self._pause_began)

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield gauge(
            "quire_build_info",
            "1; the labels name what runs.",
            {(__version__, self._service): 1.0},
            ("version", "service"),
        )
        yield gauge(
            "quire_ready",
            "1 while health reports SERVING.",
            float(self._is_ready()),
        )
        yield histogram(
            "quire_event_loop_lag_seconds",
            "By how much timers of the event loop were late.",
            self._lag,
        )
        yield gauge(
            "quire_event_loop_tasks",
            "Tasks of the event loop that have not ended.",
            0 if self._loop is None else len(asyncio.all_tasks(self._loop)),
        )
        yield histogram(
            "quire_gc_pause_seconds",
            "Time of a garbage collection.",
            {(str(generation),): each for generation, each in enumerate(self._pauses)},
            ("generation",),
        )
        expiry = self._certificate_expiry()
        if expiry is not None:
            yield gauge(
                "quire_certificate_expiry_timestamp_seconds",
                "When the service's certificate ends, in seconds since 1970.",
                expiry,
            )
        yield from self._process.collect()
