"""Protocol versions of calls: what a caller sends of its own, and the server's check of it.

Callers send theirs as metadata, so that one that is too far apart is refused before anything of it
is read. The answer has the server's, in the first message of what it is asked: `Welcome`,
`DescribeResponse`, `GenerateStarted`. There the caller checks it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from quire.contract.errors import InvalidRequestError, QuireError
from quire.contract.versions import UNVERSIONED, check_protocol
from quire.observe.log import get_logger
from quire.rpc.call_metadata import PROTOCOL_VERSION

# By which services meet: who sends no version there is of a release that had none. Elsewhere it may
# be a program of somebody else's, for which the rules of protobuf must do.
HANDSHAKES = {
    "/quire.v1.SchedulerService/Session": "router",
    "/quire.v1.SchedulerService/AnnounceWorker": "worker",
    "/quire.v1.WorkerService/Describe": "scheduler",
}
OURS = "/quire.v1."
MAX_DIGITS = 9

log = get_logger()


class ProtocolInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls of peers whose protocol version is too far from this release's."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        if method.startswith(OURS):
            try:
                check_metadata(method, handler_call_details.invocation_metadata)
            except QuireError as error:
                return grpc.stream_stream_rpc_method_handler(_Refusal(method, error).refuse)
        return await continuation(handler_call_details)


def check_metadata(method: str, metadata: Sequence[tuple[str, str | bytes]]) -> None:
    """Check the version that a call brings.

    Args:
        method: "/package.Service/Method".
        metadata: of the call.

    Raises:
        InvalidRequestError: it is not a number.
        ProtocolDiffersError: it is too far from this release's.
    """
    values = [value for key, value in metadata or () if key == PROTOCOL_VERSION]
    if not values:
        if method in HANDSHAKES:
            check_protocol(UNVERSIONED, f"a {HANDSHAKES[method]}")
        return
    text = str(values[0])
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise InvalidRequestError(PROTOCOL_VERSION, f"must be a number, got {text[:MAX_DIGITS]!r}")
    check_protocol(int(text), f"a {HANDSHAKES.get(method, 'client')}")


class _Refusal:
    """Ends one call with an error."""

    def __init__(self, method: str, error: QuireError) -> None:
        self._method = method
        self._error = error

    async def refuse(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        log.warning(
            "protocol_refused",
            method=self._method,
            peer=context.peer(),
            error=self._error.message,
        )
        raise self._error
