"""Calls that are several requests: how many go on at once, and what waits that finds no room.

A call larger than a quota takes its time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quire.contract.callers import Caller
from quire.contract.errors import OverloadedError

# Requests of one call, so that it leaves room in queues.
MAX_AT_ONCE = 64

T = TypeVar("T")
Begins = Callable[[], None]
"""Called by a request once it was accepted."""


class Patience:
    """Of a call that is several requests: once one of them was accepted, the others wait for room.

    A call of which none is accepted is refused as a single request would be.

    Args:
        deadline_s: until when the client of the call waits, on the monotonic clock; None for ever.
    """

    def __init__(self, deadline_s: float | None) -> None:
        self._deadline_s = deadline_s
        self._has_begun = False
        # Requests that were sent, and neither accepted nor refused yet.
        self._num_open = 0
        self._is_known = asyncio.Event()

    async def run(self, attempt: Callable[[Begins], Awaitable[T]]) -> T:
        """Return what comes of a request, which is sent again whenever it is refused.

        Args:
            attempt: sends it.

        Raises:
            OverloadedError: none of the call was accepted, or this one had begun, or it would be
                sent again after the deadline only.
            QuireError: as `attempt`.
        """
        self._num_open += 1
        has_begun = False

        def begins() -> None:
            nonlocal has_begun
            has_begun = self._has_begun = True
            self._is_known.set()

        while True:
            try:
                return await attempt(begins)
            except OverloadedError as error:
                if has_begun or not await self._may_wait():
                    raise
                wait_s = error.retry_after_ms / 1e3
                if self._deadline_s is not None and time.monotonic() + wait_s >= self._deadline_s:
                    raise
            await asyncio.sleep(wait_s)

    async def _may_wait(self) -> bool:
        """Return, as soon as it is known, whether one of the call was accepted."""
        if not self._has_begun:
            self._num_open -= 1
            if not self._num_open:
                self._is_known.set()
            await self._is_known.wait()
        return self._has_begun


async def all_of(works: Sequence[Callable[[], Awaitable[T]]], caller: Caller) -> list[T]:
    """Return what comes of a call's requests; the first that fails ends the others.

    Args:
        works: what does each of them.
        caller: who may have so many at once; without that quota MAX_AT_ONCE go on.
    """
    if len(works) == 1:
        return [await works[0]()]
    turns = asyncio.Semaphore(min(MAX_AT_ONCE, caller.quotas.max_concurrent or MAX_AT_ONCE))

    async def in_turn(work: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await work()

    tasks = [asyncio.create_task(in_turn(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
