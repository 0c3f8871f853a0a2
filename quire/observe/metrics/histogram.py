"""A histogram that costs a bisection and three additions to observe."""

from bisect import bisect_left
from collections.abc import Sequence

# Seconds. From a token of a small model to a request of many minutes.
LATENCY_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0),
)
# Seconds. For what should take no time at all.
PAUSE_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
# Tokens or sequences.
COUNT_BOUNDS = tuple(float(2**power) for power in range(15))


class Histogram:
    """Counts of observations by size. Not for several threads at once.

    Args:
        bounds: upper bounds of the buckets, inclusive and ascending; one without a bound follows.

    Attributes:
        bounds: as given.
        counts: [len(bounds) + 1] observations in each bucket alone.
        total: sum of the observations.
    """

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)
