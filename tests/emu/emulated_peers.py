"""Memory of peers that fails when it is closed too early: a GPU would read what is gone."""

import weakref
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any


class HeldByGraphs:
    """What may not be closed while a graph holds a kernel that uses it.

    Attributes:
        graphs: the kernels that graphs hold.
    """

    graphs: "weakref.WeakSet[Callable[[], None]]"


@cache
def watched_memory(kernels: ModuleType) -> Any:
    """Return the PeerMemory of the kernels, with that check."""

    class WatchedMemory(kernels.PeerMemory, HeldByGraphs):  # type: ignore[name-defined, misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.graphs = weakref.WeakSet()

        def close(self) -> None:
            """See PeerMemory."""
            if len(self.graphs) > 0:
                raise RuntimeError("peer memory: a graph holds sums of the group that is left")
            super().close()

    return WatchedMemory
