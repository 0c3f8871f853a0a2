"""The one thread that calls into Ray."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from quire.contract.errors import UnavailableError

Result = TypeVar("Result")


class RayThread:
    """Runs blocking calls one after the other, off the event loop.

    A daemon that ends only when told to: processes that Ray starts die with the thread that started
    them, and a call that hangs must not keep this process.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="ray", daemon=True).start()

    async def call(self, function: Callable[[], Result], timeout_s: float, what: str) -> Result:
        """Return what `function` returns, or raise what it raises.

        Args:
            function: to be run.
            timeout_s: how long to wait, for the calls before it too; it goes on nevertheless.
            what: for the message, e.g. "connecting to Ray".

        Raises:
            UnavailableError: it takes longer.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(settler: Callable[[Any], None], outcome: Any) -> None:
            if not done.done():
                settler(outcome)

        def run() -> None:
            try:
                settler, outcome = done.set_result, function()
            except Exception as error:
                settler, outcome = done.set_exception, error  # type: ignore[assignment]
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, settler, outcome)

        self._calls.put(run)
        try:
            # Not wait_for: that of Python 3.11 loses a cancellation beside an answer.
            async with asyncio.timeout(timeout_s):
                result: Result = await done
        except TimeoutError:
            raise UnavailableError(
                f"--launcher ray: {what} took more than {timeout_s:g} s"
            ) from None
        return result

    def end(self) -> None:
        """End the thread after its calls, and with it the processes that Ray has started in it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
