"""InferenceService: from proto, call the router, to proto."""

from contextlib import aclosing
from dataclasses import replace

import grpc

from quire.contract.outputs import Delta, Event, TokenLogprobs
from quire.observe.tracing import current_span
from quire.rpc.access import caller_name
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.inference import (
    cluster_to_proto,
    detokenize_input_from_proto,
    event_to_proto,
    generate_input_from_proto,
    models_to_proto,
    tokenize_input_from_proto,
)
from router.cells.pool import CellPool
from router.requests.counters import Counters, RequestCounters
from router.requests.stream import RequestStream
from router.requests.time_ledger import TimeLedger
from router.requests.validate import Validator
from router.text.tokenize import TextCodec


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
        counters: Counters,
    ):
        self._validator = validator
        self._codec = codec
        self._cells = cells
        self._counters = counters

    async def Generate(  # type: ignore[override]
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events of a request; a client that goes away takes its request with it."""
        record = self._counters.open(caller_name())
        try:
            await self._generate(request, context, record)
        except Exception as error:
            record.fail(error)
            raise
        finally:
            record.close()

    async def _generate(
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext,
        record: RequestCounters,
    ) -> None:
        ledger = TimeLedger()
        valid = await self._validator.generate(generate_input_from_proto(request), ledger)
        params = valid.sampling_params
        record.accept(valid.model.name, params.n)
        stream = RequestStream(
            valid,
            lambda: self._codec.detokenizer(
                valid.prompt_token_ids,
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
            ),
            ledger,
            current_span(),
        )
        self._cells.open(stream)
        try:
            async with aclosing(stream.events()) as events:
                async for event in events:
                    record.count(event)
                    await context.write(event_to_proto(self._with_texts(event)))
        finally:
            self._cells.close(stream)

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
        """End a request that runs here."""
        return inference_pb2.AbortResponse(aborted=self._cells.abort(request.request_id))

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
