"""A cluster for callers that have no event loop."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from launch.cluster.supervisor import Cluster, ClusterConfig

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for a thread beside others that use grpc, and may end before it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    return loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    # grpc wakes every loop that has used it, from whichever is awake: also one that was closed.
    if not (isinstance(error, RuntimeError) and "loop is closed" in str(error)):
        loop.default_exception_handler(context)


class ClusterThread:
    """A cluster kept by an event loop in a thread of its own."""

    def __init__(self, config: ClusterConfig) -> None:
        self._loop = new_loop()
        # A daemon: if this process ends without `stop`, its children end with it.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quire-cluster", daemon=True
        )
        self._thread.start()
        self._cluster = Cluster(config)
        starting = self._call(_task_of(self._cluster.start()))
        try:
            self._call(_outcome_of(starting))
        except BaseException:  # also Ctrl-C: what has started is stopped
            starting.get_loop().call_soon_threadsafe(starting.cancel)
            self._call(_end_of(starting))
            self._end_loop()
            raise

    @property
    def address(self) -> str:
        """Where the router listens."""
        return self._cluster.router.address

    @property
    def cluster(self) -> Cluster:
        """The cluster, which the thread starts, keeps and stops."""
        return self._cluster

    def stop(self) -> None:
        """Stop every service, and the thread."""
        self._call(self._cluster.stop())
        self._end_loop()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _task_of(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    return asyncio.create_task(coroutine)


async def _outcome_of(task: "asyncio.Task[None]") -> None:
    await task


async def _end_of(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])
