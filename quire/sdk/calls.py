"""What calls of a router are made of, with an event loop or without: options and metadata."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import grpc

from quire.contract.inputs import GenerateInput
from quire.contract.sampling_params import SamplingParams
from quire.observe.tracing import TRACEPARENT
from quire.rpc import Role, TlsFiles
from quire.rpc.call_errors import error_from_rpc

Prompt = str | Sequence[int]


class GenerateOptions(TypedDict, total=False):
    """What a request may carry beside prompt and parameters.

    Attributes:
        request_id: unique among your running requests; "" has the router make one.
        model: "" for the only one that is served.
        priority: smaller goes first, in [-100, 100].
        cache_salt: share cached prefixes with requests of the same salt only.
        include_time_breakdown: have the answer say where its time went.
        include_prompt_token_ids: have Started bring the prompt's token ids.
        timeout: seconds for the whole answer; None for no limit.
        traceparent: your span, as W3C Trace Context; the spans of the request become part of it.
    """

    request_id: str
    model: str
    priority: int
    cache_salt: str
    include_time_breakdown: bool
    include_prompt_token_ids: bool
    timeout: float | None
    traceparent: str


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a failed call means, in the place of what the transport calls it."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None


def open_tls(tls_dir: str | Path | None) -> TlsFiles | None:
    """Return a client's certificates, from a directory or from that of QUIRE_TLS_DIR."""
    directory = tls_dir or os.environ.get("QUIRE_TLS_DIR")
    return TlsFiles(directory, Role.CLIENT) if directory else None


def generate_input(
    prompt: Prompt,
    sampling_params: SamplingParams | None,
    options: GenerateOptions,
    heartbeat_ms: int | None = None,
    resumable: bool = False,
) -> GenerateInput:
    """Return the request that a call of the SDK asks for."""
    return GenerateInput(
        prompt,
        sampling_params or SamplingParams(),
        options.get("request_id", ""),
        options.get("model", ""),
        options.get("priority", 0),
        options.get("cache_salt", ""),
        options.get("include_time_breakdown", False),
        options.get("include_prompt_token_ids", False),
        heartbeat_ms,
        resumable,
    )


def trace_metadata(options: GenerateOptions) -> tuple[tuple[str, str], ...]:
    """Return the metadata that makes a request part of the caller's trace."""
    traceparent = options.get("traceparent")
    return ((TRACEPARENT, traceparent),) if traceparent else ()
