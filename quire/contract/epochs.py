"""Epochs: numbers of scheduler incarnations, taken from the clock."""

import time

# 2020-01-01, so that epochs are short on the wire.
_ORIGIN_S = 1_577_836_800
# Clocks that differ, and incarnations within a millisecond, stay below. A number that comes from
# noise or a torn message seldom does, and would take a worker from its scheduler.
_MAX_AHEAD_MS = 30 * 86_400_000


def clock_epoch() -> int:
    """Return the epoch of now by this machine's clock: milliseconds since 2020."""
    return int(1000 * (time.time() - _ORIGIN_S))


def max_epoch() -> int:
    """Return the largest epoch that a scheduler may have, 30 days ahead of the clock."""
    return clock_epoch() + _MAX_AHEAD_MS
