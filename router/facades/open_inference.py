"""The Open Inference Protocol: from proto, call the router, to proto."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import grpc

from quire.contract.callers import Caller
from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    QuireError,
    ReaderStalledError,
)
from quire.contract.inputs import DetokenizeInput
from quire.contract.outputs import Delta, Finished, Started
from quire.facades import open_inference_pb2 as pb
from quire.facades import open_inference_pb2_grpc
from quire.rpc.access import current_caller
from quire.sdk.collect import Collector
from quire.version import __version__
from quire.wire.open_inference import (
    FINAL_RESPONSE,
    MAX_ID_CHARS,
    InferInput,
    InferOutput,
    infer_input_from_proto,
    infer_output_to_proto,
)
from quire.wire.open_inference_models import (
    model_config_to_proto,
    model_metadata_to_proto,
    model_statistics_to_proto,
)
from router.requests.deadline import deadline_of
from router.requests.inference import Inference
from router.requests.reader import ReaderWatch

# Requests of one stream that run at a time; the next is read when one of them has ended.
MAX_STREAM_REQUESTS = 64


class OpenInferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Requests of the Open Inference Protocol, as the router's own.

    Args:
        inference: runs requests.
        is_serving: whether a cell is connected.
    """

    def __init__(self, inference: Inference, is_serving: Callable[[], bool]) -> None:
        self._inference = inference
        self._is_serving = is_serving

    async def ServerLive(
        self, request: pb.ServerLiveRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerLiveResponse:
        """Return that the router answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerReadyResponse:
        """Return whether a cell is connected."""
        return pb.ServerReadyResponse(ready=self._is_serving())

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelReadyResponse:
        """Return whether a cell serves the model."""
        return pb.ModelReadyResponse(ready=self._is_serving() and self._serves(request.name))

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> pb.ServerMetadataResponse:
        """Return what the server is."""
        return pb.ServerMetadataResponse(name="quire", version=__version__)

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelMetadataResponse:
        """Return the tensors of a model."""
        self._require(request.name)
        return model_metadata_to_proto(request.name)

    async def ModelConfig(
        self, request: pb.ModelConfigRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelConfigResponse:
        """Return the tensors of a model as Triton's configuration has them."""
        self._require(request.name)
        return model_config_to_proto(request.name)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelStatisticsResponse:
        """Return what became of the requests of a model, or of each."""
        if request.name:
            self._require(request.name)
        served = (each for each in self._inference.models() if each.has_name(request.name))
        names = dict.fromkeys(each.name for each in served)  # with several arithmetics, one twice
        return pb.ModelStatisticsResponse(
            model_stats=[
                model_statistics_to_proto(request.name or name, self._inference.statistics(name))
                for name in names
            ]
        )

    def _require(self, name: str) -> None:
        if not self._serves(name):
            raise ModelNotFoundError(f"no cell serves the model {name!r}")

    def _serves(self, name: str) -> bool:
        return bool(name) and any(model.has_name(name) for model in self._inference.models())

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelInferResponse:
        """Return a whole text."""
        caller = current_caller()
        with self._inference.refusals(caller):
            sent = infer_input_from_proto(request)
            if sent.stream:
                raise InvalidRequestError("stream", "must be false: ModelStreamInfer streams")
        output = await self._whole(sent, caller, deadline_of(context))
        return infer_output_to_proto(output, sent, request.model_name)

    async def ModelStreamInfer(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[pb.ModelInferRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Answer the requests of a stream side by side."""
        room = asyncio.Semaphore(MAX_STREAM_REQUESTS)
        writing = asyncio.Lock()
        caller, deadline_s = current_caller(), deadline_of(context)

        async def write(message: pb.ModelStreamInferResponse) -> None:
            async with writing:
                with ReaderWatch(self._inference.stalled_reader_timeout_s) as watch:
                    watch.begin()
                    await context.write(message)

        async def answer(request: pb.ModelInferRequest) -> None:
            try:
                with self._inference.refusals(caller):
                    sent = infer_input_from_proto(request)
                if not sent.stream:
                    output = await self._whole(sent, caller, deadline_s)
                    response = infer_output_to_proto(
                        output, sent, request.model_name, is_final=True
                    )
                    await write(pb.ModelStreamInferResponse(infer_response=response))
                    return
                async with aclosing(self._pieces(sent, caller, deadline_s)) as pieces:
                    async for piece in pieces:
                        response = infer_output_to_proto(
                            *(piece, sent, request.model_name), is_final=bool(piece.finish_reasons)
                        )
                        await write(pb.ModelStreamInferResponse(infer_response=response))
            except ReaderStalledError:
                raise  # it would not read this either
            except QuireError as error:
                failed = pb.ModelInferResponse(
                    id=request.id[:MAX_ID_CHARS], model_name=request.model_name[:MAX_ID_CHARS]
                )
                failed.parameters[FINAL_RESPONSE].bool_param = True
                await write(
                    pb.ModelStreamInferResponse(error_message=str(error), infer_response=failed)
                )
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as tasks:
                await room.acquire()
                async for request in request_iterator:
                    tasks.create_task(answer(request))
                    await room.acquire()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _whole(
        self, sent: InferInput, caller: Caller, deadline_s: float | None
    ) -> InferOutput:
        collector = Collector()
        async with aclosing(self._inference.events(sent.request, caller, deadline_s)) as events:
            async for event in events:
                collector.add(event)
        completions = collector.completions()
        for each in completions:
            if (error := each.finish_reason.error) is not None:
                raise error
        prompt = await self._prompt(sent) if sent.echo else ""
        return InferOutput(
            [prompt + each.text for each in completions],
            [each.finish_reason.shown for each in completions],
            completions[0].token_ids if len(completions) == 1 else None,
        )

    async def _prompt(self, sent: InferInput) -> str:
        prompt = sent.request.prompt
        if isinstance(prompt, str):
            return prompt
        return await self._inference.detokenize(DetokenizeInput(prompt, sent.request.model))

    async def _pieces(
        self, sent: InferInput, caller: Caller, deadline_s: float | None
    ) -> AsyncGenerator[InferOutput, None]:
        async with aclosing(self._inference.events(sent.request, caller, deadline_s)) as events:
            async for event in events:
                match event:
                    case Started():
                        pass
                    case Delta():
                        yield InferOutput([event.text], token_ids=event.token_ids)
                    case Finished():
                        if (error := event.finish_reason.error) is not None:
                            raise error
                        yield InferOutput([""], [event.finish_reason.shown], ())
