"""Which cells end, and when they are back."""

import random

from simulator.config import OutageKind, SimulationConfig


class Outages:
    """Ends cells as configured, and brings them back.

    Attributes:
        joined: cells that routers can choose from now on.
        left: cells that they cannot choose any more.

    Args:
        config: of the cluster.
    """

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._coming = sorted(config.outages, key=lambda each: (each.at_s, each.kind))
        self._rng = random.Random(config.seed)
        self._up = set(range(config.num_cells))
        self._back_at_s: dict[int, float] = {}
        self.joined: list[int] = list(range(config.num_cells))
        self.left: list[int] = []

    def take_news(self) -> tuple[list[int], list[int]]:
        """Return the cells that joined and those that left since the last call."""
        joined, self.joined = self.joined, []
        left, self.left = self.left, []
        return joined, left

    def begin(self, end_s: float) -> tuple[list[int], list[int], list[int]]:
        """Return the cells that are killed, drained and started before `end_s`."""
        taken: dict[OutageKind, list[int]] = {kind: [] for kind in OutageKind}
        while self._coming and self._coming[0].at_s < end_s:
            outage = self._coming.pop(0)
            chosen = self._rng.sample(sorted(self._up), min(outage.num_cells, len(self._up)))
            self._up.difference_update(chosen)
            taken[outage.kind] += chosen
            self.left += chosen
        started = [each for each, back_s in self._back_at_s.items() if back_s < end_s]
        for cell_id in started:
            del self._back_at_s[cell_id]
        self._up.update(started)
        self.joined += started
        return taken[OutageKind.KILL], taken[OutageKind.DRAIN], started

    def gone(self, cell_ids: list[int], now: float) -> None:
        """Record cells that have ended; they are back after `restart_s`."""
        for cell_id in cell_ids:
            self._back_at_s[cell_id] = now + self._config.restart_s
