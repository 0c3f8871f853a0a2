"""Until when a client waits for its whole answer."""

import math
import time

import grpc

# By how much a client may tell its deadline later when it calls again: what the way takes.
_SLACK_S = 1.0


class Deadline:
    """A time on the monotonic clock.

    Args:
        at_s: None for never.
    """

    def __init__(self, at_s: float | None = None) -> None:
        self._at_s = math.inf if at_s is None else at_s

    @property
    def remaining_ms(self) -> int | None:
        """Milliseconds until then, at least 0; None for ever."""
        if math.isinf(self._at_s):
            return None
        return max(0, round(1e3 * (self._at_s - time.monotonic())))

    @property
    def is_near(self) -> bool:
        """Whether it is not worth calling again before."""
        return self._at_s <= time.monotonic() + _SLACK_S

    def is_later_than(self, other: "Deadline") -> bool:
        """Return whether a request that is to end by the other one ends too early for this."""
        return self._at_s > other._at_s + _SLACK_S


def deadline_of(context: grpc.aio.ServicerContext) -> float | None:
    """Return until when the client of a call waits, on the monotonic clock; None for ever."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else time.monotonic() + remaining_s
