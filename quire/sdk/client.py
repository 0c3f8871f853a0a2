"""The SDK: clients of a router, for asyncio and for plain scripts.

Errors are those of `quire.contract.errors`, whatever the transport calls them. Leaving a stream
early cancels its request. A stream that breaks is resumed, at the next router if there are several,
and shows no seam.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

from quire.contract.embeddings import Embeddings
from quire.contract.errors import QuireError
from quire.contract.inputs import DetokenizeInput
from quire.contract.outputs import CellStatus, Completion, Event, ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel, open_sync_channel
from quire.sdk.calls import (
    ChatOptions,
    EmbedOptions,
    GenerateOptions,
    Messages,
    Prompt,
    embed_message,
    own_errors,
    tokenize_message,
)
from quire.sdk.collect import Collector, collected, first_of
from quire.sdk.connection import NO_OPTIONS, PASSED_OVER, Connection
from quire.sdk.resume import ResumableStream
from quire.v1 import inference_pb2
from quire.wire.embeddings import embeddings_from_proto
from quire.wire.inference import (
    cluster_from_proto,
    detokenize_input_to_proto,
    event_from_proto,
    models_from_proto,
)


class AsyncClient(Connection):
    """A router's client for asyncio. Use it in one event loop; close it or use `async with`.

    A request is what its arguments are at the call, also where a task awaits it later.
    """

    _open = staticmethod(open_channel)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, Completion]:
        """Return the whole answer, the first of n; arguments and errors as in `stream`."""
        return first_of(self.generate_all(prompt, sampling_params, **options))

    def generate_all(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Coroutine[Any, Any, list[Completion]]:
        """Return all n whole answers; arguments and errors as in `stream`."""
        return collected(self.stream(prompt, sampling_params, **options), Collector())

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Event, None]:
        """Yield Started, Deltas as they come, and Finished for each output.

        Closing the iterator ends the request. Where the router is lost, another one goes on.

        Args:
            prompt: text, or token ids.
            sampling_params: None for the defaults.
            options: see GenerateOptions.

        Raises:
            InvalidRequestError: a field is out of bounds.
            ModelNotFoundError: the model is not served there.
            RequestExistsError: the request_id is in use.
            OverloadedError: a queue is full, or a quota of the API key is used up
                (QuotaExceededError); try again after `retry_after_ms`.
            UnauthenticatedError: the router wants an API key, and not this one.
            UnavailableError: the router or its schedulers cannot be reached.
            DeadlineExceededError: `timeout` has passed.
        """
        return self._events(self._open_stream(prompt, sampling_params, options), options)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Coroutine[Any, Any, Completion]:
        """Return what the assistant says next, the first of n; as `stream_chat`."""
        return first_of(self.chat_all(messages, sampling_params, **options))

    def chat_all(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Coroutine[Any, Any, list[Completion]]:
        """Return all n whole answers; arguments and errors as in `stream_chat`."""
        collector = Collector(options.get("parse_output", False))
        return collected(self.stream_chat(messages, sampling_params, **options), collector)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[Event, None]:
        """Continue a conversation, whose prompt is what the model's chat template makes of it.

        Yields what `stream` does; Started brings the prompt's token ids.

        Args:
            messages: in OpenAI's shape, see Messages.
            sampling_params: None for the defaults.
            options: see ChatOptions.

        Raises:
            InvalidRequestError: also where the model has no chat template, or it refuses the
                messages; other errors are those of `stream`.
        """
        return self._events(self._open_chat(messages, sampling_params, options), options)

    async def _events(
        self, stream: ResumableStream, options: GenerateOptions
    ) -> AsyncGenerator[Event, None]:
        with self._departures.aborted_if_left(stream, self._metadata):
            while not stream.is_complete:
                stub = self._stub
                call = self._call(stub, stream, options)
                try:
                    with own_errors():
                        async for response in call:
                            self._is_known = True
                            event = event_from_proto(response)
                            if stream.take(event):
                                yield event
                    stream.check_complete()
                except QuireError as error:
                    delay_s = stream.failed(error)
                    self._leave(stub)
                    await asyncio.sleep(delay_s)
                finally:
                    # Since grpc 1.83 a stream that is merely dropped would run on.
                    call.cancel()

    async def embed(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Return a vector for each prompt: the hidden state of its last token.

        Args:
            prompts: a text or token ids, or a sequence of them; at most 2,048.
            options: see EmbedOptions.

        Raises:
            QuireError: those of `stream`.
        """
        request = embed_message(prompts, options)
        return embeddings_from_proto(await self._unary("Embed", request, options))

    async def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        request = inference_pb2.AbortRequest(request_id=request_id)
        for stub in self._stub_of_each:
            with self._lost_among_others(), own_errors():
                if (await stub.Abort(request, metadata=self._metadata)).aborted:
                    return True
        return False

    async def tokenize(
        self, text: str, *, add_special_tokens: bool = True, model: str = ""
    ) -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_message(text, model, add_special_tokens)
        return list((await self._unary("Tokenize", request)).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        return str((await self._unary("Detokenize", request)).text)

    async def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        response = await self._unary("ListModels", inference_pb2.ListModelsRequest())
        return models_from_proto(response)

    async def watch_cluster(self) -> AsyncGenerator[list[CellStatus], None]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            with own_errors():
                async for response in call:
                    yield cluster_from_proto(response)
        finally:
            call.cancel()

    async def _unary(self, method: str, request: Any, options: EmbedOptions = NO_OPTIONS) -> Any:
        """Call the routers in turn until one answers."""
        arguments = self._unary_arguments(options)
        for _ in self._stub_of_each[1:]:
            stub = self._stub
            with suppress(*PASSED_OVER), own_errors():
                return await getattr(stub, method)(request, **arguments())
            self._leave(stub)
        with own_errors():
            return await getattr(self._stub, method)(request, **arguments())

    async def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        await self._departures.until_sent()
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Client(Connection):
    """A router's client for plain scripts and threads. Close it, or use it in `with`."""

    _open = staticmethod(open_sync_channel)

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
        return self._events(self._open_stream(prompt, sampling_params, options), options)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Return what the assistant says next, the first of n; as `stream_chat`."""
        return (self.chat_all(messages, sampling_params, **options))[0]

    def chat_all(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]:
        """Return all n whole answers; arguments and errors as in `stream_chat`."""
        collector = Collector(options.get("parse_output", False))
        for event in self.stream_chat(messages, sampling_params, **options):
            collector.add(event)
        return collector.completions()

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Generator[Event, None, None]:
        """Continue a conversation; arguments and errors as in `AsyncClient.stream_chat`."""
        return self._events(self._open_chat(messages, sampling_params, options), options)

    def _events(
        self, stream: ResumableStream, options: GenerateOptions
    ) -> Generator[Event, None, None]:
        with self._departures.aborted_if_left(stream, self._metadata):
            while not stream.is_complete:
                stub = self._stub
                call = self._call(stub, stream, options)
                try:
                    with own_errors():
                        for response in call:
                            self._is_known = True
                            event = event_from_proto(response)
                            if stream.take(event):
                                yield event
                    stream.check_complete()
                except QuireError as error:
                    delay_s = stream.failed(error)
                    self._leave(stub)
                    if self._closed.wait(delay_s):
                        raise
                finally:
                    call.cancel()

    def embed(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Return a vector for each prompt; arguments and errors as in `AsyncClient.embed`."""
        request = embed_message(prompts, options)
        return embeddings_from_proto(self._unary("Embed", request, options))

    def abort(self, request_id: str) -> bool:
        """End a running request; its stream finishes with ABORT. Returns whether there was one."""
        request = inference_pb2.AbortRequest(request_id=request_id)
        for stub in self._stub_of_each:
            with self._lost_among_others(), own_errors():
                if stub.Abort(request, metadata=self._metadata).aborted:
                    return True
        return False

    def tokenize(self, text: str, *, add_special_tokens: bool = True, model: str = "") -> list[int]:
        """Return the token ids of a text."""
        request = tokenize_message(text, model, add_special_tokens)
        return list(self._unary("Tokenize", request).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, model: str = ""
    ) -> str:
        """Return the text of token ids."""
        request = detokenize_input_to_proto(DetokenizeInput(token_ids, model, skip_special_tokens))
        return str(self._unary("Detokenize", request).text)

    def list_models(self) -> list[ModelInfo]:
        """Return the models that are served now."""
        response = self._unary("ListModels", inference_pb2.ListModelsRequest())
        return models_from_proto(response)

    def watch_cluster(self) -> Iterator[list[CellStatus]]:
        """Yield the state of every cell, at once and after changes, until closed."""
        call = self._stub.WatchCluster(inference_pb2.WatchClusterRequest(), metadata=self._metadata)
        try:
            with own_errors():
                for response in call:
                    yield cluster_from_proto(response)
        finally:
            call.cancel()

    def _unary(self, method: str, request: Any, options: EmbedOptions = NO_OPTIONS) -> Any:
        """Call the routers in turn until one answers."""
        arguments = self._unary_arguments(options)
        for _ in self._stub_of_each[1:]:
            stub = self._stub
            with suppress(*PASSED_OVER), own_errors():
                return getattr(stub, method)(request, **arguments())
            self._leave(stub)
        with own_errors():
            return getattr(self._stub, method)(request, **arguments())

    def close(self) -> None:
        """Close the connection; running calls are cancelled."""
        self._closed.set()
        self._departures.wait_until_sent()
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
