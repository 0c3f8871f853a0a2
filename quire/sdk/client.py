"""The SDK: clients of a router, for asyncio and for plain scripts.

Errors are those of `quire.contract.errors`, whatever the transport calls them. Leaving a stream
early cancels its request.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from quire.contract.inputs import DetokenizeInput, TokenizeInput
from quire.contract.outputs import CellStatus, Completion, Event, ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.rpc import Role, TlsFiles, open_channel, open_sync_channel
from quire.rpc.access import call_metadata
from quire.rpc.call_errors import error_from_rpc
from quire.sdk.calls import (
    GenerateOptions,
    Prompt,
    generate_input,
    open_tls,
    trace_metadata,
)
from quire.sdk.collect import Collector
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.inference import (
    cluster_from_proto,
    detokenize_input_to_proto,
    event_from_proto,
    generate_input_to_proto,
    models_from_proto,
    tokenize_input_to_proto,
)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what a failed call means, in the place of what the transport calls it."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None


class _Connection:
    """What both clients are: a channel to a router, its stub, and what each call carries."""

    _open: Callable[[str, TlsFiles | None, str | None], Any]
    _stub: Any

    def __init__(
        self,
        target: str,
        *,
        tls_dir: str | Path | None = None,
        server_name: str | None = None,
        api_key: str | None = None,
        insecure: bool = False,
    ) -> None:
        """Prepare a connection; it is made at the first call.

        Args:
            target: address of a router, "host:port".
            tls_dir: directory of `ca.crt`, `tls.crt` and `tls.key`, or of `ca.crt` alone where the
                router asks for no certificate; None takes the environment's QUIRE_TLS_DIR, and
                speaks in the clear without it.
            server_name: that the router's certificate must have; None for its role, quire-router.
            api_key: sent with every call; None takes QUIRE_API_KEY from the environment, if set.
            insecure: let the key go over a network in the clear.

        Raises:
            ConfigError: the certificates cannot be used, or the key would go in the clear and
                `insecure` does not allow it.
        """
        tls = open_tls(tls_dir)
        self._metadata = call_metadata(
            target, api_key, encrypted=tls is not None, insecure=insecure
        )
        self._channel = self._open(target, tls, server_name or Role.ROUTER)
        # One class serves both kinds of channels; only its types differ.
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)


class AsyncClient(_Connection):
    """A router's client for asyncio. Use it in one event loop; close it or use `async with`."""

    _open = staticmethod(open_channel)
    _stub: "inference_pb2_grpc.InferenceServiceAsyncStub"

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Return the whole answer, the first of n; arguments and errors as in `stream`."""
        return (await self.generate_all(prompt, sampling_params, **options))[0]

    async def generate_all(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Return all n whole answers; arguments and errors as in `stream`."""
        collector = Collector()
        async for event in self.stream(prompt, sampling_params, **options):
            collector.add(event)
        return collector.completions()

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Event, None]:
        """Yield Started, Deltas as they come, and Finished for each output.

        Closing the iterator ends the request.

        Args:
            prompt: text, or token ids.
            sampling_params: None for the defaults.
            options: see GenerateOptions.

        Raises:
            InvalidRequestError: a field is out of bounds.
            ModelNotFoundError: the model is not served there.
            RequestExistsError: the request_id is in use.
            OverloadedError: a queue is full; try again after `retry_after_ms`.
            UnauthenticatedError: the router wants an API key, and not this one.
            UnavailableError: the router or its schedulers cannot be reached.
            DeadlineExceededError: `timeout` has passed.
        """
        call = self._stub.Generate(
            generate_input_to_proto(generate_input(prompt, sampling_params, options)),
            timeout=options.get("timeout"),
            metadata=(*self._metadata, *trace_metadata(options)),
        )
        try:
            with _own_errors():
                async for response in call:
                    yield event_from_proto(response)
        finally:
            # Since grpc 1.83 a stream that is merely dropped would run on.
            call.cancel()

    async def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        with _own_errors():
            request = inference_pb2.AbortRequest(request_id=request_id)
            return bool((await self._stub.Abort(request, metadata=self._metadata)).aborted)

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, model: str = ""
    ) -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_input_to_proto(TokenizeInput(text, model, add_special_tokens))
        with _own_errors():
            return list((await self._stub.Tokenize(request, metadata=self._metadata)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        with _own_errors():
            return str((await self._stub.Detokenize(request, metadata=self._metadata)).text)

    async def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        with _own_errors():
            response = await self._stub.ListModels(
                inference_pb2.ListModelsRequest(), metadata=self._metadata
            )
        return models_from_proto(response)

    async def watch_cluster(self) -> AsyncGenerator[list[CellStatus], None]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            with _own_errors():
                async for response in call:
                    yield cluster_from_proto(response)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Client(_Connection):
    """A router's client for plain scripts and threads. Close it, or use it in `with`."""

    _open = staticmethod(open_sync_channel)
    _stub: inference_pb2_grpc.InferenceServiceStub

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Return the whole answer, the first of n; as `AsyncClient.generate`."""
        return (self.generate_all(prompt, sampling_params, **options))[0]

    def generate_all(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Return all n whole answers; arguments and errors as in `AsyncClient.stream`."""
        collector = Collector()
        for event in self.stream(prompt, sampling_params, **options):
            collector.add(event)
        return collector.completions()

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generator[Event, None, None]:
        """Yield Started, Deltas and Finished; arguments and errors as in `AsyncClient.stream`."""
        call = self._stub.Generate(
            generate_input_to_proto(generate_input(prompt, sampling_params, options)),
            timeout=options.get("timeout"),
            metadata=(*self._metadata, *trace_metadata(options)),
        )
        try:
            with _own_errors():
                for response in call:
                    yield event_from_proto(response)
        finally:
            call.cancel()

    def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        with _own_errors():
            request = inference_pb2.AbortRequest(request_id=request_id)
            return bool(self._stub.Abort(request, metadata=self._metadata).aborted)

    def tokenize(self, text: str, *, add_special_tokens: bool = True, model: str = "") -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_input_to_proto(TokenizeInput(text, model, add_special_tokens))
        with _own_errors():
            return list(self._stub.Tokenize(request, metadata=self._metadata).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        with _own_errors():
            return str(self._stub.Detokenize(request, metadata=self._metadata).text)

    def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        with _own_errors():
            response = self._stub.ListModels(
                inference_pb2.ListModelsRequest(), metadata=self._metadata
            )
        return models_from_proto(response)

    def watch_cluster(self) -> Iterator[list[CellStatus]]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            with _own_errors():
                for response in call:
                    yield cluster_from_proto(response)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
