"""Every error has a status and a body in the shape that OpenAI's clients read."""

from http import HTTPStatus

import pytest

from quire.contract import errors
from quire.contract.errors import InvalidRequestError, OverloadedError, QuireError
from router.http.errors import headers_of, openai_error, status_of


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
    assert body["param"] == ("prompt" if isinstance(error, InvalidRequestError) else None)
    retry = {"retry-after": "2", "retry-after-ms": "1500"}
    if isinstance(error, OverloadedError):
        assert (status, headers_of(error)) == (HTTPStatus.TOO_MANY_REQUESTS, retry)
