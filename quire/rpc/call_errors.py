"""Errors of calls: what a client raises of what a server sent."""

import grpc

from quire.contract.errors import (
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    PermissionDeniedError,
    QuireError,
    RequestExistsError,
    UnauthenticatedError,
    UnavailableError,
)
from quire.security.handshake import explain
from quire.wire.errors import error_from_status

# Key of the trailing metadata in which a serialized google.rpc.Status comes, by gRPC's convention.
STATUS_KEY = "grpc-status-details-bin"

# For statuses that no service of ours made: the connection's, a proxy's, or a later version's.
_BY_CODE: dict[grpc.StatusCode, type[QuireError]] = {
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: RequestExistsError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    # A server, or a proxy before it, gave the call up.
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}


def sent_error(error: grpc.RpcError) -> QuireError | None:
    """Return the error that a service of ours ended a call with; None if none of ours did.

    Args:
        error: of a synchronous or an asyncio call.
    """
    content = _status(error)
    return None if content is None else error_from_status(content)


def was_sent(error: grpc.RpcError) -> bool:
    """Return whether a service ended a call by itself, with an error of ours or an unforeseen one.

    Args:
        error: of a synchronous or an asyncio call. grpc ends some with INTERNAL or UNKNOWN, too.
    """
    return _status(error) is not None


def error_from_rpc(error: grpc.RpcError) -> QuireError:
    """Return the error that a failed call means: as it was raised, or else by the status code.

    Args:
        error: of a synchronous or an asyncio call.
    """
    sent = sent_error(error)
    if sent is not None:
        return sent
    code, message = error.code(), explain(error.details() or error.code().name)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and not was_sent(error):
        # Not our queue but the transport: the message is larger than the server reads.
        return InvalidRequestError("request", message)
    return _BY_CODE.get(code, QuireError)(message)


def _status(error: grpc.RpcError) -> bytes | None:
    """Return the serialized Status that a call ended with; None if it brought none."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_KEY and isinstance(value, bytes):
            return value
    return None
