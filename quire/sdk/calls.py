"""What calls of a router are made of, with an event loop or without: options, requests, errors."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from quire.contract.errors import (
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    QuireError,
    RequestExistsError,
    UnauthenticatedError,
    UnavailableError,
)
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import TRACEPARENT
from quire.rpc import Role, TlsFiles
from quire.security.handshake import explain
from quire.v1 import inference_pb2
from quire.wire.common import sampling_params_to_proto

Prompt = str | Sequence[int]

_ERRORS: dict[grpc.StatusCode, type[QuireError]] = {
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: RequestExistsError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    # Not by us: a server, or what stands before it, gave the call up.
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}


class GenerateOptions(TypedDict, total=False):
    """What a request may carry beside prompt and parameters.

    Attributes:
        request_id: unique among your running requests; "" has the router make one.
        model: "" for the only one that is served.
        priority: smaller goes first, in [-100, 100].
        cache_salt: share cached prefixes with requests of the same salt only.
        include_time_breakdown: have the answer say where its time went.
        timeout: seconds for the whole answer; None for no limit.
        traceparent: your span, as W3C Trace Context; the spans of the request become part of it.
    """

    request_id: str
    model: str
    priority: int
    cache_salt: str
    include_time_breakdown: bool
    timeout: float | None
    traceparent: str


def open_tls(tls_dir: str | Path | None) -> TlsFiles | None:
    """Return a client's certificates, from a directory or from that of QUIRE_TLS_DIR."""
    directory = tls_dir or os.environ.get("QUIRE_TLS_DIR")
    return TlsFiles(directory, Role.CLIENT) if directory else None


def _token_ids(field: str, token_ids: Sequence[int]) -> Sequence[int]:
    """Return ids that a message can hold.

    Raises:
        InvalidRequestError: one is negative or absurdly large.
    """
    for token_id in token_ids:
        if not 0 <= token_id < 2**32:
            raise InvalidRequestError(field, f"token ids must be in [0, 2**32), got {token_id}")
    return token_ids


def generate_request(
    prompt: Prompt, sampling_params: SamplingParams | None, options: GenerateOptions
) -> inference_pb2.GenerateRequest:
    """Return the message of a request."""
    request = inference_pb2.GenerateRequest(
        request_id=options.get("request_id", ""),
        model=options.get("model", ""),
        sampling_params=sampling_params_to_proto(sampling_params or SamplingParams()),
        priority=options.get("priority", 0),
        cache_salt=options.get("cache_salt", ""),
        include_time_breakdown=options.get("include_time_breakdown", False),
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(_token_ids("prompt", prompt))
    return request


def trace_metadata(options: GenerateOptions) -> tuple[tuple[str, str], ...]:
    """Return the metadata that makes a request part of the caller's trace."""
    traceparent = options.get("traceparent")
    return ((TRACEPARENT, traceparent),) if traceparent else ()


def tokenize_request(
    text: str, add_special_tokens: bool, model: str
) -> inference_pb2.TokenizeRequest:
    """Return the message of a text to be tokenized."""
    return inference_pb2.TokenizeRequest(
        model=model, text=text, add_special_tokens=add_special_tokens
    )


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool, model: str
) -> inference_pb2.DetokenizeRequest:
    """Return the message of token ids to be read."""
    return inference_pb2.DetokenizeRequest(
        model=model,
        token_ids=_token_ids("token_ids", token_ids),
        skip_special_tokens=skip_special_tokens,
    )


def error_from_rpc(error: grpc.RpcError) -> QuireError:
    """Return the error that a failed call means, from its status and rich details.

    Args:
        error: of a synchronous or an asyncio call.
    """
    code, message = error.code(), explain(error.details() or error.code().name)
    status = rpc_status.from_call(error)
    for packed in status.details if status is not None else ():
        bad_request = error_details_pb2.BadRequest()
        if packed.Unpack(bad_request) and bad_request.field_violations:
            violation = bad_request.field_violations[0]
            return InvalidRequestError(violation.field, violation.description)
        retry = error_details_pb2.RetryInfo()
        if packed.Unpack(retry):
            return OverloadedError(message, retry.retry_delay.ToMilliseconds())
    if status is None and code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Not our queue but the transport: the message is larger than the server reads.
        return InvalidRequestError("request", message)
    return _ERRORS.get(code, QuireError)(message)
