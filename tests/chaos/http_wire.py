"""HTTP/1.1 by hand: sends bytes that no client library would, and reads whatever is answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

# Longer than any limit of the server: what is not answered by then hangs.
HANG_S = 90.0
_MAX_ANSWER_BYTES = 2**25


class HangError(Exception):
    """Neither an answer came, nor the end of the connection."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server.

    Attributes:
        status: of it.
        headers: names in small letters.
        body: all of it; of a stream of events nothing.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_stream(self) -> bool:
        """Whether events come."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Wire:
    """A connection that is opened again when it is closed.

    Args:
        address: of the server, "host:port".
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, content: bytes, has_body: bool = True) -> Answer | None:
        """Send a request and return its answer; None where the connection ends without one.

        Args:
            content: all of the request.
            has_body: whether answers to its method have a body.

        Raises:
            HangError: nothing came.
        """
        for is_last in (False, True):
            is_new = self._streams is None
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._place, limit=2**20)
            answer = await self._exchange(*self._streams, content, has_body)
            if answer is None or answer.is_stream or answer.headers.get("connection") == "close":
                await self.close()
            # One that was idle may have been closed before this request came there.
            if answer is not None or is_new or is_last:
                return answer
        raise AssertionError("the second try is the last")

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        content: bytes,
        has_body: bool,
    ) -> Answer | None:
        try:
            async with asyncio.timeout(HANG_S):
                await _write(writer, content)
                return await read_answer(reader, has_body)
        except TimeoutError:
            await self.close()
            raise HangError(f"nothing within {HANG_S:g} s") from None

    async def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            (_, writer), self._streams = self._streams, None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader, has_body: bool = True) -> Answer | None:
    """Return the next answer on a connection, without the events of a stream; None for its end."""
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.strip().split("\r\n")
        status = int(first.split(" ")[1])
        if status >= 200:
            break
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    length = int(headers.get("content-length", "0"))
    assert length <= _MAX_ANSWER_BYTES, f"an answer of {length} bytes"
    answer = Answer(status, headers, b"")
    if not has_body or answer.is_stream:
        return answer
    try:
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([each async for each in _chunks(reader)])
        else:
            body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return replace(answer, body=body)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the parts of a body whose length its head does not have."""
    left = _MAX_ANSWER_BYTES
    while length := int(await reader.readuntil(b"\r\n"), 16):
        left -= length
        assert left >= 0, f"an answer of more than {_MAX_ANSWER_BYTES} bytes"
        yield await reader.readexactly(length)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


async def send_raw(
    address: str,
    content: bytes,
    num_answers: int = 0,
    has_body: bool = True,
    pause_s: float = 0.0,
    first: bytes = b"",
) -> list[Answer]:
    """Send bytes on a connection of their own and return all that is answered.

    Args:
        address: of the server.
        content: what to send.
        num_answers: after which the sending is ended, or the server closes; 0 ends it at once.
        has_body: whether answers have one.
        pause_s: between two bytes; 0 sends all at once.
        first: what goes before all that, at once.

    Raises:
        HangError: the server does not close the connection.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    answers: list[Answer] = []
    are_there = asyncio.Event()

    async def read() -> None:
        while (answer := await read_answer(reader, has_body)) is not None:
            answers.append(answer)
            if len(answers) == num_answers:
                are_there.set()
            if answer.is_stream:
                break
        are_there.set()

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(HANG_S):
            await _write(writer, first)
            if pause_s:
                for place in range(len(content)):
                    if reading.done():
                        break
                    await _write(writer, content[place : place + 1])
                    await asyncio.sleep(pause_s)
            else:
                await _write(writer, content)
            if num_answers:
                await are_there.wait()
            with contextlib.suppress(OSError):
                writer.write_eof()
            await reading
    except TimeoutError:
        raise HangError(f"open after {HANG_S:g} s") from None
    finally:
        reading.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answers


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()
