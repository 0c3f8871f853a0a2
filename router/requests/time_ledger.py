"""Where the time of one request goes, as its router sees it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from quire.contract.time_breakdown import TimeBreakdown


class Part(StrEnum):
    """What a request is at, here. Values are fields of TimeBreakdown."""

    ROUTER = "router_us"
    TOKENIZE = "tokenize_us"
    NOT_READY = "not_ready_us"
    # At a cell, whose word says what it is at there; the wire is the rest.
    WIRE = "wire_us"
    RECOVERING = "recovering_us"
    UNREPORTED = "unreported_us"
    DELIVERY = "delivery_us"


def now_us() -> int:
    """Return the time in microseconds, on a clock that is never set."""
    return time.monotonic_ns() // 1000


class TimeLedger:
    """Begins when the request arrives. Its parts add up to the microsecond, on one clock.

    What a cell says of its own time is subtracted from the time between submitting the request and
    that word; the rest is the wire. So clocks of two machines are never compared.

    Args:
        clock: in microseconds.
    """

    def __init__(self, clock: Callable[[], int] = now_us) -> None:
        self._clock = clock
        self._arrived_us = self._since_us = self._heard_us = clock()
        self._part = Part.ROUTER
        self._parts_us: dict[str, int] = {}
        # The last word of the cell where the request is.
        self._cell = TimeBreakdown()

    @contextmanager
    def during(self, part: Part, at_least_us: int = 0) -> Iterator[None]:
        """What happens inside is a part of its own, unless it is over sooner than `at_least_us`."""
        before = self._part
        self._enter(part)
        try:
            yield
        finally:
            if self._clock() - self._since_us < at_least_us:
                self._part = before
            else:
                self._enter(before)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request arrived."""
        return (self._clock() - self._arrived_us) / 1e6

    def submitted(self) -> None:
        """The request goes to a cell; if it was at another, that one turned it away."""
        self._leave_cell(Part.UNREPORTED)
        self._enter(Part.WIRE)
        self._heard_us, self._cell = self._since_us, TimeBreakdown()

    def reported(self, breakdown: TimeBreakdown) -> None:
        """The cell says where the time has gone there so far."""
        self._heard_us, self._cell = self._clock(), breakdown

    def lost(self) -> None:
        """The cell does not run the request any more; what it did since its last word is lost."""
        self._leave_cell(Part.RECOVERING)

    def paused(self) -> None:
        """The request runs nowhere until its client has read."""
        self._leave_cell(Part.DELIVERY)

    def waits_for_cell(self) -> None:
        """There is no cell to submit the request to."""
        if self._part is not Part.RECOVERING:
            self._enter(Part.NOT_READY)

    def ended(self, is_told: bool) -> None:
        """The request is over but for what its client has yet to read.

        Args:
            is_told: by its cell, or by the text of the tokens that it has just sent.
        """
        if not is_told:
            self._leave_cell(Part.UNREPORTED)
        self._leave_cell(Part.DELIVERY)
        self._enter(Part.DELIVERY)

    def breakdown(self) -> TimeBreakdown:
        """Return where the time went, until now. The request must have ended."""
        self._enter(self._part)
        return TimeBreakdown(total_us=self._since_us - self._arrived_us, **self._parts_us)

    def _enter(self, part: Part, at_us: int | None = None) -> None:
        now = self._clock() if at_us is None else at_us
        self._add(self._part, now - self._since_us)
        self._part, self._since_us = part, now

    def _leave_cell(self, rest: Part) -> None:
        """If the request is at a cell, book the cell's word; what came since is the `rest`."""
        if self._part is not Part.WIRE:
            return
        # Two clocks may differ by a little more than the wire takes: nothing is less than 0.
        room_us = self._heard_us - self._since_us
        for name, us in self._cell.parts.items():
            self._add(name, min(us, room_us))
            room_us -= min(us, room_us)
        self._since_us = self._heard_us - room_us
        self._enter(rest, self._heard_us)

    def _add(self, name: str, us: int) -> None:
        if us:
            self._parts_us[name] = self._parts_us.get(name, 0) + us
