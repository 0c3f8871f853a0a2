"""Heartbeats: a peer that falls silent is lost, although its connection still stands.

A process that is stopped keeps its sockets, and so does one that the network no longer reaches.
"""

import asyncio

# Several within the shortest limit, so that one that is late ends nothing.
INTERVAL_S = 0.2
_TICK_S = 0.05


class PeerWatch:
    """Counts how long a peer has been silent, from its first heartbeat on.

    Time in which this process itself did not run does not count: after a stop of its own it would
    take every peer for lost before it has read what they sent.

    Args:
        limit_s: longest silence of a peer that is alive, in seconds.

    Attributes:
        largest_gap_s: longest time between two of its signs of life, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silent_s = 0.0
        self._heard_s = 0.0
        self._began = asyncio.Event()
        self.largest_gap_s = 0.0

    def heard(self) -> None:
        """Count a heartbeat, or what shows as well that the peer is alive."""
        now = asyncio.get_running_loop().time()
        if self._began.is_set():
            self.largest_gap_s = max(self.largest_gap_s, now - self._heard_s)
        self._heard_s = now
        self._silent_s = 0.0

    def began(self) -> None:
        """Count from now on: the peer is known to send heartbeats."""
        self.heard()
        self._began.set()

    async def until_silent(self) -> str:
        """Wait until the peer has been silent for too long; return what happened, for the log."""
        await self._began.wait()
        loop = asyncio.get_running_loop()
        while self._silent_s < self._limit_s:
            before = loop.time()
            await asyncio.sleep(_TICK_S)
            self._silent_s += min(loop.time() - before, 2 * _TICK_S)
        return f"no heartbeat for {loop.time() - self._heard_s:.1f} s"
