"""How many conversations begin, over time: a day, and bursts."""

import math
from dataclasses import dataclass

import numpy as np

from simulator.config import TrafficConfig


@dataclass(frozen=True, slots=True)
class Burst:
    """A time in which more conversations begin, the additional ones about one document.

    Attributes:
        start_s: first moment.
        end_s: first moment after it.
        document_id: that the additional conversations are about.
    """

    start_s: float
    end_s: float
    document_id: int


class RateCurve:
    """The rate at which conversations begin, as a share of the day's peak without bursts.

    Args:
        config: of the day and its bursts.
        rng: of the bursts.
    """

    def __init__(self, config: TrafficConfig, rng: np.random.Generator) -> None:
        self._config = config
        self.bursts: list[Burst] = []
        if config.burst_factor > 1:
            time_s = float(rng.exponential(config.burst_gap_s))
            while time_s < config.duration_s:
                end_s = time_s + float(rng.exponential(config.burst_s))
                document_id = int(rng.integers(config.num_documents))
                self.bursts.append(Burst(time_s, end_s, document_id))
                time_s = end_s + float(rng.exponential(config.burst_gap_s))

    def share(self, time_s: float) -> float:
        """Return the rate without bursts, 1 at the peak."""
        night = self._config.night
        day = (1 - math.cos(2 * math.pi * time_s / self._config.period_s)) / 2
        return night + (1 - night) * day

    def rate(self, time_s: float) -> float:
        """Return the rate, bursts included."""
        share = self.share(time_s)
        return share if self.burst(time_s) is None else share * self._config.burst_factor

    def burst(self, time_s: float) -> Burst | None:
        """Return the burst of a moment, if there is one."""
        return next((each for each in self.bursts if each.start_s <= time_s < each.end_s), None)
