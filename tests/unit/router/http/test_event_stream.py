"""What goes out between events, and when."""

import asyncio
from typing import Any

from router.http.event_stream import KEEP_ALIVE, EventStream


class Call:
    """Takes what is written, and says when there was a keep-alive."""

    keep_alive_s = 0.0

    def __init__(self) -> None:
        self.status: int | None = None
        self.kept_alive = asyncio.Event()

    async def begin(self, status: int, headers: Any) -> None:
        self.status = status

    async def write(self, content: bytes) -> None:
        if content == KEEP_ALIVE:
            self.kept_alive.set()


async def test_what_is_empty_begins_the_answer_and_is_silence() -> None:
    call = Call()
    async with EventStream(call) as stream:  # type: ignore[arg-type]
        await stream.write(b"")
        assert call.status == 200
        while not call.kept_alive.is_set():
            await stream.write(b"")
            await asyncio.sleep(0)
