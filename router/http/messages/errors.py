"""Errors in the shape in which Anthropic's clients expect them.

https://docs.claude.com/en/api/errors
"""

import re
from http import HTTPStatus
from typing import Any

from quire.contract.errors import (
    ContextLengthError,
    OverloadedError,
    QuireError,
    QuotaExceededError,
)
from router.http.call import REQUEST_ID
from router.http.endpoint import ApiShape
from router.http.errors import status_of

# Not among those of HTTP: the service is full for every caller.
OVERLOADED = 529
_TYPE_OF_STATUS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def anthropic_status(error: QuireError) -> int:
    """Return the status of an answer that reports an error."""
    if isinstance(error, OverloadedError) and not isinstance(error, QuotaExceededError):
        return OVERLOADED
    return status_of(error)


def anthropic_error(error: QuireError, request_id: str) -> dict[str, Any]:
    """Return the body that reports an error.

    Args:
        error: to report.
        request_id: of the request.
    """
    status = anthropic_status(error)
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    message = error.message
    if isinstance(error, ContextLengthError) and error.limit:
        # Word for word: clients that shorten a conversation look for this.
        message = f"prompt is too long: {error.num_tokens} tokens > {error.limit} maximum"
    kind = _TYPE_OF_STATUS.get(status, "api_error" if is_ours else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


ANTHROPIC = ApiShape(
    anthropic_error,
    "error",
    anthropic_status,
    (REQUEST_ID, "request-id"),
    own_name=lambda name: re.sub(r"^(tools\[\d+\])\.parameters$", r"\1.input_schema", name),
)
