"""Errors of calls over HTTP: statuses, and the shape in which OpenAI's clients expect them."""

import math
from http import HTTPStatus
from typing import Any

from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    QuireError,
)
from quire.contract.outputs import Finished

# As Google's mapping of codes, but for FAILED_PRECONDITION: what a request depends on is another.
_STATUS_OF_CODE = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "FAILED_PRECONDITION": HTTPStatus.PRECONDITION_FAILED,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
    "INTERNAL": HTTPStatus.INTERNAL_SERVER_ERROR,
}
_TYPE_OF_STATUS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
# Where OpenAI's own code says the same as a reason of ours.
_CODE_OF_REASON = {
    "API_KEY_INVALID": "invalid_api_key",
    "QUOTA_EXCEEDED": "rate_limit_exceeded",
}


class HttpError(QuireError):
    """A call that is wrong as HTTP, before what it asks for is looked at."""

    code = "INVALID_ARGUMENT"
    reason = "BAD_HTTP_REQUEST"

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGoneError(Exception):
    """Nobody is there to read an answer any more."""


def failure_of(end: Finished | None) -> dict[str, Any]:
    """Return the field of a choice that says why it ended with `error`; none where it did not."""
    error = None if end is None else end.finish_reason.error
    return {} if error is None else openai_error(error)


def status_of(error: QuireError) -> HTTPStatus:
    """Return the status of an answer that reports an error."""
    return error.status if isinstance(error, HttpError) else _STATUS_OF_CODE[error.code]


def headers_of(error: QuireError) -> dict[str, str]:
    """Return the headers of such an answer: when to come again, or how to say who one is."""
    status = status_of(error)
    if isinstance(error, OverloadedError):
        seconds = math.ceil(error.retry_after_ms / 1e3)
        return {"retry-after": str(seconds), "retry-after-ms": str(error.retry_after_ms)}
    return {"www-authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}


def _param(error: QuireError) -> str | None:
    """Return the field that an error is about; None for none."""
    if isinstance(error, ModelNotFoundError):
        return "model"
    return error.field if isinstance(error, InvalidRequestError) else None


def openai_error(error: QuireError) -> dict[str, Any]:
    """Return the body that OpenAI's APIs answer with: message, type, param and code."""
    status = status_of(error)
    kind = _TYPE_OF_STATUS.get(status)
    if kind is None:
        kind = (
            "server_error"
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR
            else "invalid_request_error"
        )
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": _param(error),
            "code": _CODE_OF_REASON.get(error.reason, error.reason.lower()),
        }
    }
