"""To and from google.rpc.Status: an error arrives as the class that was raised."""

from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from quire.contract import errors
from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError

ERROR_DOMAIN = "quire"
# Each class has a reason of its own; a test holds them to it.
_BY_REASON: dict[str, type[QuireError]] = {
    kind.reason: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QuireError)
}


def error_to_status(error: QuireError) -> status_pb2.Status:
    """Return the status of an error: ErrorInfo, and BadRequest or RetryInfo if they fit."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    details: list[Message] = [info]
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.description
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, OverloadedError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        wrapped = any_pb2.Any()
        wrapped.Pack(detail)
        packed.append(wrapped)
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code), message=error.message, details=packed
    )


def error_from_status(status: status_pb2.Status) -> QuireError | None:
    """Return the error of a status; None if it is not one of ours, or of a reason unknown here."""
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for packed in status.details:
        for detail in (info, bad_request, retry):
            packed.Unpack(detail)
    kind = _BY_REASON.get(info.reason) if info.domain == ERROR_DOMAIN else None
    if kind is None:
        return None
    if issubclass(kind, InvalidRequestError):
        violation = bad_request.field_violations[0]
        return kind(violation.field, violation.description)
    if issubclass(kind, OverloadedError):
        return kind(status.message, retry.retry_delay.ToMilliseconds())
    return kind(status.message)
