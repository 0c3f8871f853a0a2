"""Every error has a status and a body in the shape that clients of its API read."""

from http import HTTPStatus

import pytest

from quire.contract import errors
from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    QuireError,
)
from router.http.errors import headers_of, openai_error, status_of
from router.http.messages.errors import OVERLOADED, anthropic_error, anthropic_status


def test_an_error_keeps_what_it_knows_under_another_name() -> None:
    long = errors.ContextLengthError("prompt", "must be shorter", 300, 256).renamed("messages")
    assert long.message == "messages: must be shorter"
    body = anthropic_error(long, "")
    assert body["error"]["message"] == "prompt is too long: 300 tokens > 256 maximum"
    assert type(errors.TooLargeError("a", "b").renamed("c")) is errors.TooLargeError


def made(kind: type[QuireError]) -> QuireError:
    if issubclass(kind, InvalidRequestError):
        return kind("prompt", "must be short")
    return kind("why", 1500) if issubclass(kind, OverloadedError) else kind("why")


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QuireError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status_and_openais_shape(kind) -> None:
    error = made(kind)
    status, body = status_of(error), openai_error(error)["error"]
    assert 400 <= status < 600
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"] == error.message
    assert (body["type"] == "server_error") == (status >= 500)
    params = {InvalidRequestError: "prompt", ModelNotFoundError: "model"}
    assert body["param"] == next((params[each] for each in params if isinstance(error, each)), None)
    retry = {"retry-after": "2", "retry-after-ms": "1500"}
    if isinstance(error, OverloadedError):
        assert (status, headers_of(error)) == (HTTPStatus.TOO_MANY_REQUESTS, retry)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_anthropics_shape(kind) -> None:
    error = made(kind)
    status, body = anthropic_status(error), anthropic_error(error, "mine")
    assert body["error"].keys() == {"type", "message"}
    assert (body["type"], body["request_id"]) == ("error", "mine")
    types = {
        HTTPStatus.BAD_REQUEST: "invalid_request_error",
        HTTPStatus.UNAUTHORIZED: "authentication_error",
        HTTPStatus.FORBIDDEN: "permission_error",
        HTTPStatus.NOT_FOUND: "not_found_error",
        HTTPStatus.CONFLICT: "invalid_request_error",
        HTTPStatus.PRECONDITION_FAILED: "invalid_request_error",
        HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
        HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
        HTTPStatus.SERVICE_UNAVAILABLE: "api_error",
        HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
        OVERLOADED: "overloaded_error",
    }
    assert body["error"]["type"] == types[status]
    is_full = isinstance(error, OverloadedError) and not isinstance(
        error, errors.QuotaExceededError
    )
    assert (status == OVERLOADED) == is_full
