"""Kills of a router in mid-stream that must come in time."""

from collections.abc import Awaitable, Callable

import pytest

NUM_TRIES = 20


async def kill_in_time(kill: Callable[[int], Awaitable[int]]) -> None:
    """Kill the router of a stream again, until one had not sent the last event yet.

    Args:
        kill: kills the router in a stream, reads the stream to its end and returns how many calls
            that took: one, if the last event was on its way already. Is given the number of the
            try, from 0.
    """
    for number in range(NUM_TRIES):
        if await kill(number) > 1:
            return
    pytest.fail(f"{NUM_TRIES} routers had sent the whole answer before they were killed")
