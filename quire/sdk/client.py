"""The SDK: clients of a router, for asyncio and for plain scripts.

Errors are those of `quire.contract.errors`, whatever the transport calls them. Leaving a stream
early cancels its request.
"""

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, cast

import grpc

from quire.contract.inputs import DetokenizeInput, TokenizeInput
from quire.contract.outputs import CellStatus, Completion, Event, ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.rpc import Role, open_channel, open_sync_channel
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


class AsyncClient:
    """A router's client for asyncio. Use it in one event loop; close it or use `async with`."""

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
        self._channel = open_channel(target, tls, server_name or Role.ROUTER)
        self._stub = cast(
            "inference_pb2_grpc.InferenceServiceAsyncStub",
            inference_pb2_grpc.InferenceServiceStub(self._channel),
        )

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
            async for response in call:
                yield event_from_proto(response)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        finally:
            # Since grpc 1.83 a stream that is merely dropped would run on.
            call.cancel()

    async def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        try:
            request = inference_pb2.AbortRequest(request_id=request_id)
            return bool((await self._stub.Abort(request, metadata=self._metadata)).aborted)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, model: str = ""
    ) -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_input_to_proto(TokenizeInput(text, model, add_special_tokens))
        try:
            return list((await self._stub.Tokenize(request, metadata=self._metadata)).token_ids)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        try:
            return str((await self._stub.Detokenize(request, metadata=self._metadata)).text)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        try:
            response = await self._stub.ListModels(
                inference_pb2.ListModelsRequest(), metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        return models_from_proto(response)

    async def watch_cluster(self) -> AsyncGenerator[list[CellStatus], None]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            async for response in call:
                yield cluster_from_proto(response)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
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


class Client:
    """A router's client for plain scripts and threads. Close it, or use it in `with`."""

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
        self._channel = open_sync_channel(target, tls, server_name or Role.ROUTER)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

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
            for response in call:
                yield event_from_proto(response)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()

    def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        try:
            request = inference_pb2.AbortRequest(request_id=request_id)
            return bool(self._stub.Abort(request, metadata=self._metadata).aborted)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None

    def tokenize(self, text: str, *, add_special_tokens: bool = True, model: str = "") -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_input_to_proto(TokenizeInput(text, model, add_special_tokens))
        try:
            return list(self._stub.Tokenize(request, metadata=self._metadata).token_ids)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        try:
            return str(self._stub.Detokenize(request, metadata=self._metadata).text)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None

    def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        try:
            response = self._stub.ListModels(
                inference_pb2.ListModelsRequest(), metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        return models_from_proto(response)

    def watch_cluster(self) -> Iterator[list[CellStatus]]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            for response in call:
                yield cluster_from_proto(response)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
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
