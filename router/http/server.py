"""The HTTP port: listens in the router's event loop, and stops when its requests have ended."""

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from quire.contract.addresses import bare_host, join_address
from quire.contract.errors import UnavailableError
from quire.observe.log import get_logger
from router.http.connection import MAX_HEAD_BYTES, Connection
from router.http.unix_socket import remove_dead_socket, wrong_place

# Longer than load balancers keep theirs, so that it is they who close a connection.
IDLE_TIMEOUT_S = 75
TLS_HANDSHAKE_TIMEOUT_S = 10.0
# How long a client may take to read a few events.
WRITE_TIMEOUT_S = 60.0
# For requests that are ended to report that, where their clients read it.
LAST_WORDS_S = 0.5

log = get_logger()


class HttpServer:
    """Serves an ASGI application over HTTP/1.1.

    uvicorn's protocol without its server, which takes the process's signals, exits it, and looks
    ten times a second for a reason to.

    Args:
        app: to serve.
        tls: accepts connections; None speaks in the clear.
        has_roles: whether certificates that clients must show give them roles.
        write_timeout_s: how long a client may read next to nothing of an answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        tls: ssl.SSLContext | None = None,
        has_roles: bool = False,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        # What a stranger sends must not write into the log; requests have lines of their own.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        self._config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._tls = tls
        self._write_timeout_s = write_timeout_s
        self._has_roles = has_roles
        self._server: asyncio.Server | None = None

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return len(self._state.connections)

    @property
    def num_requests(self) -> int:
        """Requests that have no complete answer."""
        return len(self._state.tasks)

    async def start(self, host: str, port: int, grpc_address: str = "") -> str:
        """Listen, and return the address bound, "host:port".

        Args:
            host: address to bind, and no other.
            port: 0 takes a free one.
            grpc_address: where a client of gRPC that comes here is sent to.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: self._connection(grpc_address),
                bare_host(host),
                port,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if self._tls else None,
            )
        except OSError as error:
            where = join_address(host, port)
            raise UnavailableError(f"cannot listen on {where}: is it in use?") from error
        address = join_address(host, self._server.sockets[0].getsockname()[1])
        log.info("http_listening", address=address, tls=self._tls is not None)
        return address

    async def start_unix(self, path: str, grpc_address: str = "") -> str:
        """Listen on a Unix domain socket, and return "unix:PATH".

        Args:
            path: of the socket; one that a dead process has left there is replaced.
            grpc_address: as for `start`.

        Raises:
            UnavailableError: it cannot be made, or somebody listens there.
        """
        try:
            remove_dead_socket(Path(path))
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: self._connection(grpc_address),
                path,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if self._tls else None,
            )
        except OSError as error:
            raise UnavailableError(wrong_place(path, error)) from error
        log.info("http_listening", address=f"unix:{path}", tls=self._tls is not None)
        return f"unix:{path}"

    def _connection(self, grpc_address: str) -> Connection:
        text = f"this port is for HTTP/1.1, gRPC is at {grpc_address}" if grpc_address else ""
        return Connection(
            *(self._config, self._state, {}),
            self._write_timeout_s,
            has_roles=self._has_roles,
            grpc_text=text,
        )

    async def stop(self, grace_s: float = 1.0) -> None:
        """Take no more requests, give running ones `grace_s`, then end them."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()  # now, or with the end of its answer
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while tasks := set(self._state.tasks):
                    await asyncio.wait(tasks)
        tasks = set(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        # Before those that are left are awaited: they may wait for a client that reads nothing.
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
