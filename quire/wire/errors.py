"""To and from google.rpc.Status: an error arrives as the class that was raised."""

from typing import Any

from google.protobuf.message import DecodeError

from quire.contract import errors
from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError
from quire.wire.status import CODES, BadRequest, ErrorInfo, RetryInfo, Status, pack, unpack

ERROR_DOMAIN = "quire"
# Each class has a reason of its own; a test holds them to it.
_BY_REASON: dict[str, type[QuireError]] = {
    kind.reason: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QuireError)
}


def status_of(code: str, message: str) -> Any:
    """Return a Status without details.

    Args:
        code: its name, one of CODES.
        message: for people.
    """
    return Status(code=CODES.index(code), message=message)


def error_to_status(error: QuireError) -> Any:
    """Return the Status of an error: ErrorInfo, and BadRequest or RetryInfo if they fit."""
    status = status_of(error.code, error.message)
    pack(status, ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN))
    if isinstance(error, InvalidRequestError):
        violation = {"field": error.field, "description": error.description}
        pack(status, BadRequest(field_violations=[violation]))
    if isinstance(error, OverloadedError):
        seconds, ms = divmod(error.retry_after_ms, 1000)
        pack(status, RetryInfo(retry_delay={"seconds": seconds, "nanos": ms * 1_000_000}))
    return status


def error_from_status(content: bytes) -> QuireError | None:
    """Return the error of a serialized Status.

    Returns:
        None if it is malformed, not one of ours, or of a reason unknown here.
    """
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    try:
        status = Status.FromString(content)
        for detail in (info, bad_request, retry):
            unpack(status, detail)
    except DecodeError:
        return None
    kind = _BY_REASON.get(info.reason) if info.domain == ERROR_DOMAIN else None
    if kind is None:
        return None
    if issubclass(kind, InvalidRequestError):
        if not bad_request.field_violations:
            return None
        violation = bad_request.field_violations[0]
        return kind(violation.field, violation.description)
    if issubclass(kind, OverloadedError):
        delay = retry.retry_delay
        return kind(status.message, delay.seconds * 1000 + delay.nanos // 1_000_000)
    return kind(status.message)
