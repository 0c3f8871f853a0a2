"""Access by API key: every call is refused unless it brings one, but for a short list."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
import structlog

from quire.contract.callers import ANYONE, Caller
from quire.contract.errors import OverloadedError, UnauthenticatedError
from quire.rpc.call_metadata import API_KEY, SCHEME
from quire.rpc.handlers import around, behavior_of, rebuild
from quire.security.api_keys import ApiKeys

# What load balancers, probes and tools ask before they have a key. Health shows whether there is
# capacity, reflection shows what the published protos do.
OPEN_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)

# Of these calls at once, each of which may be held open for ever: a stream costs about 20 KB, and
# their clients need not be known.
MAX_OPEN_STREAMS = 2048
RETRY_AFTER_MS = 1000

# One text for a key that is absent, malformed, wrong, revoked or expired: a guess teaches nothing.
REFUSAL = (
    "this call needs a valid API key: QUIRE_API_KEY or --api-key of quire's commands, api_key of "
    "its clients, metadata 'authorization: Bearer KEY' of others"
)

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


def current_caller() -> Caller:
    """Return whose API key the current call came with; one without a name if it came without."""
    return _caller.get()


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call through if it brings a valid key, or if anyone may make it.

    The name of the key is then bound to the log lines of the call, as `api_key`. A key is looked at
    once, when a call begins: one that runs when its key is revoked goes on to its end.

    Attributes:
        num_refused: calls refused so far.
    """

    def __init__(self, keys: ApiKeys):
        self._keys = keys
        self.num_refused = 0
        self._num_open_streams = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call, or one that refuses it, also where there is none."""
        if handler_call_details.method in OPEN_METHODS:
            return self._counted(await continuation(handler_call_details))
        caller = self._authenticate(handler_call_details.invocation_metadata)
        if caller is None:
            self.num_refused += 1
            # Whatever the method's kind: of a stream no message is read before its handler asks
            # for one, so that nothing of a large request is held for those who may not send it.
            return grpc.stream_stream_rpc_method_handler(_refuse)
        _caller.set(caller)
        structlog.contextvars.bind_contextvars(api_key=caller.name)
        return await continuation(handler_call_details)

    def _counted(self, handler: grpc.RpcMethodHandler | None) -> grpc.RpcMethodHandler | None:
        """Return `handler`, of which there are only so many at once if it streams."""
        if handler is None or not handler.response_streaming:
            return handler

        @asynccontextmanager
        async def counted(_: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            if self._num_open_streams >= MAX_OPEN_STREAMS:
                raise OverloadedError("too many of these streams are open", RETRY_AFTER_MS)
            self._num_open_streams += 1
            try:
                yield
            finally:
                self._num_open_streams -= 1

        return rebuild(handler, around(behavior_of(handler), counted), handler.request_deserializer)

    def _authenticate(self, metadata: Sequence[tuple[str, str | bytes]]) -> Caller | None:
        """Return whose key the metadata brings, None if it is not one valid key."""
        values = [value for key, value in metadata or () if key == API_KEY]
        if len(values) != 1 or not isinstance(values[0], str):
            return None  # of two keys, which one is meant is not ours to choose
        scheme, _, key = values[0].partition(" ")
        return self._keys.find(key.strip(" ")) if scheme.lower() == SCHEME.lower() else None


async def _refuse(request: Any, context: grpc.aio.ServicerContext) -> None:
    raise UnauthenticatedError(REFUSAL)
