"""The admin port: metrics and probes over plain HTTP/1.1, for Prometheus, kubelets and people.

It changes nothing and shows neither prompts nor answers, so it needs no certificate; it is a port
of its own because kubelets speak no mutual TLS. It answers on the service's event loop, so an
answer proves that the loop turns.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from quire.contract.addresses import bare_host, join_address
from quire.contract.errors import UnavailableError
from quire.observe.log import get_logger

# Of a request line and its headers.
MAX_HEAD_BYTES = 8192
# For a request to come and its answer to go.
TIMEOUT_S = 5.0
MAX_CONNECTIONS = 32
TEXT = "text/plain; charset=utf-8"

log = get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """An answer.

    Attributes:
        body: its text.
        status: of HTTP.
        content_type: of the body.
    """

    body: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


class AdminServer:
    """Serves a few pages to GET and HEAD, one request a connection.

    Args:
        pages: makes the page of each path.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._num_connections = 0

    async def start(self, port: int, host: str = "127.0.0.1") -> str:
        """Listen, and return the address bound, "host:port".

        Args:
            port: 0 takes a free one.
            host: address to bind, and no other.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve, bare_host(host), port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            where = join_address(host, port)
            raise UnavailableError(f"cannot listen on {where}: is it in use?") from error
        address = join_address(host, self._server.sockets[0].getsockname()[1])
        log.info("admin_listening", address=address)
        return address

    async def stop(self) -> None:
        """Stop listening; an answer on its way may still arrive."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_connections += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # Above the limit the connection is closed without an answer.
                if self._num_connections <= MAX_CONNECTIONS:
                    page, with_body = await self._answer(reader)
                    writer.write(_to_bytes(page, with_body=with_body))
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError):
            pass  # the client has gone, or does not read
        finally:
            self._num_connections -= 1
            # Closing alone would keep unsent bytes for as long as the client does not read them.
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[Page, bool]:
        """Return the page for a request, and whether its body is to be sent."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Page("the head is too long\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        except asyncio.IncompleteReadError:
            return Page("not a request\n", HTTPStatus.BAD_REQUEST), True
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page("not a request of HTTP/1.1\n", HTTPStatus.BAD_REQUEST), True
        method, target, _ = words
        make = self._pages.get(target.partition("?")[0])
        if make is None:
            return Page("\n".join((*self._pages, "")), HTTPStatus.NOT_FOUND), method != "HEAD"
        if method not in ("GET", "HEAD"):
            return Page("GET or HEAD\n", HTTPStatus.METHOD_NOT_ALLOWED), True
        try:
            return make(), method == "GET"
        except Exception as error:
            # The cause is for the log, not for the client.
            log.error("admin_page_failed", path=target, exc_info=error)
            return Page("failed\n", HTTPStatus.INTERNAL_SERVER_ERROR), method == "GET"


def verdict(reason: str) -> Page:
    """Return the page of a probe: "ok", or 503 with the reason why not.

    Args:
        reason: one line; empty if all is well.
    """
    return Page(f"{reason}\n", HTTPStatus.SERVICE_UNAVAILABLE) if reason else Page("ok\n")


def _to_bytes(page: Page, *, with_body: bool) -> bytes:
    body = page.body.encode() if isinstance(page.body, str) else page.body
    allow = "Allow: GET, HEAD\r\n" if page.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"{allow}Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
