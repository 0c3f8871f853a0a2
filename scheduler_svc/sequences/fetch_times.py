"""How long blocks of another cell take to come, as measured."""

from scheduler_svc.sequences.step_times import StepTimes

# A way that was slow once may not be any more, and what is not fetched is not measured.
LASTS_S = 60.0


class FetchTimes:
    """Time of a fetch as a line over its blocks: the connection, and what each block adds.

    It is known while the last fetch is no longer ago than LASTS_S. Where large ones were slow for
    their size, the line falls below nothing on its way to the small ones: then none is expected to
    take less than the shortest of those that were measured meanwhile.
    """

    def __init__(self) -> None:
        # Few fetches make a line: a cell that moves has hundreds within seconds.
        self._times = StepTimes(half_life_steps=16.0)
        self._known_until_s = float("-inf")
        self._shortest_us = float("inf")

    def observe(self, num_blocks: int, fetch_us: float, now: float) -> None:
        """Record the time that a fetch took.

        Args:
            num_blocks: that came.
            fetch_us: from the order on.
            now: in seconds, on any clock that is never set.
        """
        if now > self._known_until_s:
            self._shortest_us = float("inf")
        self._shortest_us = min(self._shortest_us, fetch_us)
        self._times.observe_step(num_blocks, fetch_us)
        self._known_until_s = now + LASTS_S

    def expected_us(self, num_blocks: int, now: float) -> float | None:
        """Return the time to expect of a fetch; None where it is not known."""
        if now > self._known_until_s:
            return None
        line_us = self._times.step_us(num_blocks)
        return line_us if self._times.step_us(0) >= 0.0 else max(self._shortest_us, line_us)
