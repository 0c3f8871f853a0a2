"""InferenceService: from proto, call the router, to proto."""

from collections.abc import Callable
from contextlib import ExitStack, aclosing
from typing import TypeVar

import grpc

from quire.contract.chat import ChatInput
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.rpc.access import current_caller
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.chat import chat_input_from_proto
from quire.wire.embeddings import embed_input_from_proto, embeddings_to_proto
from quire.wire.inference import (
    cluster_to_proto,
    detokenize_input_from_proto,
    event_to_proto,
    generate_input_from_proto,
    heartbeat_to_proto,
    models_to_proto,
    resume_input_from_proto,
    tokenize_input_from_proto,
)
from router.cells.pool import CellPool
from router.requests.deadline import deadline_of
from router.requests.embeddings import Embedder
from router.requests.heartbeats import check_interval, heartbeats
from router.requests.inference import Inference

MessageT = TypeVar(
    "MessageT",
    inference_pb2.GenerateRequest,
    inference_pb2.ChatRequest,
    inference_pb2.ResumeRequest,
)


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The public API.

    Streaming methods are coroutines that write, not generators: a call that is cancelled while a
    write is blocked by a client that does not read then runs its `finally` at once.
    """

    def __init__(self, inference: Inference, cells: CellPool):
        """Keep what answers.

        Args:
            inference: runs requests.
            cells: whose state WatchCluster reports.
        """
        self._inference = inference
        self._embedder = Embedder(inference)
        self._cells = cells

    async def Generate(  # type: ignore[override]
        self, request: inference_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events of a request; with a client that goes away it ends, in time."""
        await self._stream(generate_input_from_proto, request, context)

    async def Chat(  # type: ignore[override]
        self, request: inference_pb2.ChatRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events of a request whose prompt is a conversation."""
        await self._stream(chat_input_from_proto, request, context)

    async def Resume(  # type: ignore[override]
        self, request: inference_pb2.ResumeRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the events that the client has not received."""
        await self._stream(resume_input_from_proto, request, context)

    async def _stream(
        self,
        read: Callable[[MessageT], GenerateInput | ChatInput | ResumeInput],
        message: MessageT,
        context: grpc.aio.ServicerContext,
    ) -> None:
        caller, deadline_s = current_caller(), deadline_of(context)
        with self._inference.refusals(caller):
            request = read(message)
            sent = request.request if isinstance(request, ResumeInput) else request
            check_interval(sent.heartbeat_ms)
        async with (
            heartbeats(context.write, heartbeat_to_proto(), sent.heartbeat_ms) as write,
            aclosing(self._inference.events(request, caller, deadline_s)) as events,
        ):
            async for event in events:
                await write(event_to_proto(event))

    async def Embed(
        self, request: inference_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.EmbedResponse:
        """Return a vector for each input."""
        caller = current_caller()
        with self._inference.refusals(caller):
            sent = embed_input_from_proto(request)
        held = ExitStack()
        context.add_done_callback(lambda _: held.close())
        found = await self._embedder.embed(sent, caller, held, deadline_of(context))
        return embeddings_to_proto(found)

    async def Abort(
        self, request: inference_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.AbortResponse:
        """End a request that the same API key has running here."""
        aborted = self._inference.abort(request.request_id, current_caller())
        return inference_pb2.AbortResponse(aborted=aborted)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        """Return the token ids of a text."""
        token_ids = await self._inference.tokenize(tokenize_input_from_proto(request))
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.DetokenizeResponse:
        """Return the text of token ids."""
        text = await self._inference.detokenize(detokenize_input_from_proto(request))
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        """Return the models of the cells that are connected."""
        return models_to_proto(self._inference.models())

    async def WatchCluster(  # type: ignore[override]
        self, request: inference_pb2.WatchClusterRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the state of every cell."""
        async with aclosing(self._cells.watch()) as watch:
            async for statuses in watch:
                await context.write(cluster_to_proto(statuses))
