"""Connections of the HTTP port: uvicorn's protocol, with limits on what a stranger may hold."""

import asyncio
import json
import socket
import uuid
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from quire.contract.errors import OverloadedError
from router.http.call import REQUEST_ID
from router.http.errors import HttpError, headers_of, openai_error, status_of
from router.http.grpc_caller import PREFACE, GrpcCaller
from router.http.tls import roles_of

MAX_HEAD_BYTES = 16_384
MAX_CONNECTIONS = 4096
# For the head of a request to come; for the rest of a body that was refused.
HEAD_TIMEOUT_S = 10.0
# What a peer takes of an answer within the time that it has for an event, or is taken for gone.
MIN_TAKEN_BYTES = 65_536
# Of a body, what is parsed at a time.
SLICE_BYTES = 16_384
RETRY_AFTER_MS = 1000
# After which a peer that answers nothing is taken for gone, about 15 s all together.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class _Parser(h11.Connection):
    """Reads requests; one of two lengths is none (RFC 9112, 6.1).

    Attributes:
        lacks_host: whether what came is no request for want of a Host alone, or with several.
    """

    lacks_host = False

    def next_event(self) -> Any:
        """Return what came next.

        Raises:
            h11.RemoteProtocolError: it is no HTTP/1.1.
        """
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.lacks_host = str(error).endswith(("Host: header", "Host: headers"))
            raise
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            # Where a proxy takes the other one, what follows would be a request of its making.
            if names >= {b"content-length", b"transfer-encoding"}:
                raise h11.RemoteProtocolError("content-length beside transfer-encoding")
        return event


class Connection(H11Protocol):
    """One connection. Requests find it in the `state` of their scope, as "connection".

    Args:
        config: of uvicorn.
        server_state: where all connections and their requests are kept.
        app_state: of the scopes of its requests.
        write_timeout_s: how long a client may read next to nothing of an answer.
        has_roles: whether its client must show a certificate that gives it roles.
        grpc_text: for a client of gRPC that comes here; empty takes it for any other.

    Attributes:
        roles: that the certificate of its client gives; None where none is asked for.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        write_timeout_s: float,
        *,
        has_roles: bool = False,
        grpc_text: str = "",
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self.conn: _Parser = _Parser(h11.SERVER, MAX_HEAD_BYTES)
        self.roles: frozenset[str] | None = None
        self._has_roles = has_roles
        self._input_timer: asyncio.TimerHandle | None = None
        self._write_timeout_s = write_timeout_s
        self._write_timer: asyncio.TimerHandle | None = None
        self._num_unread = 0
        self._grpc_text = grpc_text
        self._grpc_caller: GrpcCaller | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if self._has_roles:
            self.roles = roles_of(transport.get_extra_info("ssl_object"))
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(OverloadedError("too many connections are open", RETRY_AFTER_MS))
        else:
            self._watch_input()

    def data_received(self, data: bytes) -> None:
        """Take what comes; a head that is begun must come to its end in time."""
        if self._speaks_grpc(data):
            return
        start = 0
        while start < len(data):
            if self.transport.is_closing():
                return
            end = start + self._num_to_parse()
            super().data_received(data[start:end])
            start = end
        self._watch_input()

    def _speaks_grpc(self, data: bytes) -> bool:
        """Return whether what came is of a client of gRPC, and answer it."""
        if self._grpc_caller is None:
            if not self._grpc_text or len(self._first) == len(PREFACE):
                return False
            data = self._first + data
            self._first = data[: len(PREFACE)]
            if self._first != PREFACE:
                return False
            self._grpc_caller = GrpcCaller(self._grpc_text)
        answer, is_last = self._grpc_caller.answer(data)
        self.transport.write(answer)
        if is_last:
            self.transport.close()
        return True

    def _num_to_parse(self) -> int:
        """Return how many bytes to parse next: of a head, no more than show that it is too long."""
        if self.conn.their_state is not h11.IDLE:
            return SLICE_BYTES
        return max(1, MAX_HEAD_BYTES - len(self.conn.trailing_data[0]))

    def pause_writing(self) -> None:
        """Wait with what else is to be written; the peer must take what is there already."""
        super().pause_writing()
        self._num_unread = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._write_timeout_s, self._look_for_reading)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        self._watch_input()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_watch()
        self._stop_write_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, in the shape of every other error."""
        wanted = f"must be a request of HTTP/1.1 whose head is of at most {MAX_HEAD_BYTES} bytes"
        if self.conn.lacks_host:
            wanted = "host: must be in the head of a request of HTTP/1.1, once"
        self._refuse(HttpError(HTTPStatus.BAD_REQUEST, wanted))

    def abort(self) -> None:
        """Break off at once: what is not sent yet is dropped."""
        self.transport.abort()

    def _refuse(self, error: HttpError | OverloadedError) -> None:
        """Answer without a request, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, body = status_of(error), json.dumps(openai_error(error)).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            headers |= {"connection": "close", REQUEST_ID: uuid.uuid4().hex, **headers_of(error)}
            events = (
                h11.Response(
                    status_code=status,
                    headers=list(headers.items()),
                    reason=STATUS_PHRASES[status],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _watch_input(self) -> None:
        """Have a timer exactly while input is awaited that no request waits for."""
        is_between = self.conn.their_state is h11.IDLE
        is_first = self.cycle is None
        # A request that was answered before all of it was read.
        is_rest = not is_first and self.cycle.response_complete
        if (is_between and (is_first or self.conn.trailing_data[0])) or (
            is_rest and self.conn.their_state is h11.SEND_BODY
        ):
            if self._input_timer is None:
                self._input_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.abort)
        else:
            self._stop_watch()

    def _look_for_reading(self) -> None:
        num_unread = self.transport.get_write_buffer_size()
        if num_unread > self._num_unread - MIN_TAKEN_BYTES:
            self.abort()
            return
        self._num_unread = num_unread
        self._write_timer = self.loop.call_later(self._write_timeout_s, self._look_for_reading)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_watch(self) -> None:
        if self._input_timer is not None:
            self._input_timer.cancel()
            self._input_timer = None
