"""InferenceService: from proto, call the router, to proto."""

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import grpc

from quire.contract.errors import ReaderStalledError
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.contract.outputs import Delta, Event, TokenLogprobs
from quire.observe.tracing import current_span
from quire.rpc.access import current_caller
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.inference import (
    cluster_to_proto,
    detokenize_input_from_proto,
    event_to_proto,
    generate_input_from_proto,
    models_to_proto,
    resume_input_from_proto,
    tokenize_input_from_proto,
)
from router.cells.pool import CellPool
from router.requests.counters import Counters, RequestCounters
from router.requests.heartbeats import Write, heartbeats
from router.requests.orphans import Orphans
from router.requests.reader import ReaderWatch, StreamReader
from router.requests.resume import check_received
from router.requests.stream import RequestStream
from router.requests.time_ledger import TimeLedger
from router.requests.validate import Validator
from router.text.tokenize import TextCodec

MessageT = TypeVar("MessageT", inference_pb2.GenerateRequest, inference_pb2.ResumeRequest)


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The public API.

    Streaming methods are coroutines that write, not generators: a call that is cancelled while a
    write is blocked by a client that does not read then runs its `finally` at once.
    """

    def __init__(
        self,
        validator: Validator,
        codec: TextCodec,
        cells: CellPool,
        orphans: Orphans,
        counters: Counters,
        stalled_reader_timeout_s: float,
    ):
        self._validator = validator
        self._codec = codec
        self._cells = cells
        self._orphans = orphans
        self._counters = counters
        self._stalled_reader_timeout_s = stalled_reader_timeout_s

    async def Generate(  # type: ignore[override]
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events of a request; with a client that goes away it ends, in time."""
        await self._counted(generate_input_from_proto, request, context)

    async def Resume(  # type: ignore[override]
        self, request: inference_pb2.ResumeRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events that the client has not received."""
        await self._counted(resume_input_from_proto, request, context)

    async def _counted(
        self,
        read: Callable[[MessageT], GenerateInput | ResumeInput],
        message: MessageT,
        context: grpc.aio.ServicerContext,
    ) -> None:
        record = self._counters.open(current_caller().name)
        try:
            request = read(message)
            sent = request.request if isinstance(request, ResumeInput) else request
            current_caller().check_priority(sent.priority)
            async with heartbeats(context, sent.heartbeat_ms) as write:
                await self._generate(request, write, context, record)
        except grpc.aio.InternalError:
            raise  # of a write: the client has gone
        except Exception as error:
            record.fail(error)
            raise
        finally:
            record.close()

    async def _generate(
        self,
        request: GenerateInput | ResumeInput,
        write: Write,
        context: grpc.aio.ServicerContext,
        record: RequestCounters,
    ) -> None:
        ledger = TimeLedger()
        remaining_s = context.time_remaining()
        deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
        if isinstance(request, ResumeInput):
            valid = await self._validator.resume(request, ledger)
            check_received(request, valid)
            num_ended = sum(output.ended for output in request.received)
        else:
            valid = await self._validator.generate(request, ledger)
            num_ended = 0
        params = valid.sampling_params
        is_resumed = isinstance(request, ResumeInput)
        record.accept(valid.model.name, params.n - num_ended, is_resumed)
        stream = RequestStream(
            valid,
            lambda: self._codec.detokenizer(
                valid.prompt_token_ids,
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
            ),
            ledger,
            current_span(),
            current_caller(),
            deadline_s,
        )
        if isinstance(request, ResumeInput):
            stream = await self._orphans.resume(stream, request)
        else:
            self._orphans.open(stream)
        reader = StreamReader(stream)
        try:
            with ReaderWatch(self._stalled_reader_timeout_s) as watch:
                async with aclosing(reader.events()) as events:
                    async for event in events:
                        record.count(event)
                        watch.begin()
                        await write(event_to_proto(self._with_texts(event)))
                        watch.end()
        except ReaderStalledError as error:
            reader.fail(error)
            raise
        finally:
            self._orphans.left(stream, reader)

    def _with_texts(self, event: Event) -> Event:
        """Say what the tokens of log-probabilities read as."""
        if not isinstance(event, Delta) or not (event.logprobs or event.prompt_logprobs):
            return event
        return replace(
            event,
            logprobs=tuple(map(self._position_with_texts, event.logprobs)),
            prompt_logprobs=tuple(map(self._position_with_texts, event.prompt_logprobs)),
        )

    def _position_with_texts(self, position: TokenLogprobs) -> TokenLogprobs:
        return replace(position, texts=tuple(map(self._codec.token_text, position.token_ids)))

    async def Abort(
        self, request: inference_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.AbortResponse:
        """End a request that the same API key has running here."""
        aborted = self._orphans.abort(request.request_id, current_caller().name)
        return inference_pb2.AbortResponse(aborted=aborted)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        """Return the token ids of a text."""
        token_ids = await self._validator.tokenize(tokenize_input_from_proto(request))
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        """Return the text of token ids."""
        text = await self._validator.detokenize(detokenize_input_from_proto(request))
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        """Return the models of the cells that are connected."""
        return models_to_proto(self._cells.models())

    async def WatchCluster(  # type: ignore[override]
        self, request: inference_pb2.WatchClusterRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the state of every cell."""
        async with aclosing(self._cells.watch()) as watch:
            async for statuses in watch:
                await context.write(cluster_to_proto(statuses))
