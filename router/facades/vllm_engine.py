"""The service of vLLM's engine: from proto, call the router, to proto."""

import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace

import grpc

from quire.contract.errors import InvalidRequestError, UnavailableError
from quire.contract.outputs import Delta, Finished, ModelInfo, Started
from quire.facades import vllm_engine_pb2 as pb
from quire.facades import vllm_engine_pb2_grpc
from quire.rpc.access import current_caller
from quire.sdk.collect import Collector
from quire.wire.vllm_engine import (
    embed_input_from_proto,
    embedding_to_proto,
    finish_to_proto,
    generate_input_from_proto,
    input_logprobs_to_proto,
    loads_to_proto,
    model_info_to_proto,
    output_logprobs_to_proto,
)
from router.cells.pool import CellPool
from router.requests.deadline import deadline_of
from router.requests.embeddings import Embedder
from router.requests.inference import Inference
from router.requests.reader import ReaderWatch

MAX_ABORTED_REQUESTS = 1024


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Requests of gateways that drive vLLM's engines, as the router's own.

    Args:
        inference: runs requests.
        cells: whose load is reported.
        is_serving: whether a cell is connected.
    """

    def __init__(
        self, inference: Inference, cells: CellPool, is_serving: Callable[[], bool]
    ) -> None:
        self._inference = inference
        self._embedder = Embedder(inference)
        self._cells = cells
        self._is_serving = is_serving
        self._started_at = time.monotonic()

    async def Generate(  # type: ignore[override]
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream chunks if they are asked for, and the end of each output."""
        caller = current_caller()
        with self._inference.refusals(caller):
            sent = replace(generate_input_from_proto(request), include_prompt_token_ids=True)
        collector, outputs = Collector(), _Outputs()
        events = self._inference.events(sent, caller, deadline_of(context))
        async with aclosing(events) as each_event:
            async for event in each_event:
                collector.add(event)
                chunk = outputs.chunk(event)
                if request.stream and chunk is not None:
                    await context.write(pb.GenerateResponse(chunk=chunk))
        for completion in collector.completions():
            token_ids = completion.token_ids
            last = token_ids[-1] if token_ids else None
            complete = pb.GenerateComplete(
                output_ids=token_ids,
                prompt_tokens=completion.num_prompt_tokens,
                completion_tokens=len(token_ids),
                output_logprobs=output_logprobs_to_proto(completion.logprobs),
                input_logprobs=input_logprobs_to_proto(
                    outputs.prompt_token_ids, completion.prompt_logprobs
                ),
                index=completion.index,
                **finish_to_proto(
                    *(completion.finish_reason, completion.stop_str, last, sent.sampling_params)
                ),
            )
            with ReaderWatch(self._inference.stalled_reader_timeout_s) as watch:
                watch.begin()
                await context.write(pb.GenerateResponse(complete=complete))

    async def Embed(
        self, request: pb.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> pb.EmbedResponse:
        """Return the vector of a prompt."""
        sent = embed_input_from_proto(request)
        held = ExitStack()
        context.add_done_callback(lambda _: held.close())
        found = await self._embedder.embed(
            sent, current_caller(), held, deadline_of(context), lambda _: "tokenized"
        )
        return embedding_to_proto(found)

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthCheckResponse:
        """Return whether a cell is connected, and why not."""
        return pb.HealthCheckResponse(
            healthy=self._is_serving(), message=self._cells.why_not_serving
        )

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext
    ) -> pb.AbortResponse:
        """End requests that the same API key has running here."""
        if (number := len(request.request_ids)) > MAX_ABORTED_REQUESTS:
            raise InvalidRequestError(
                "request_ids", f"must have at most {MAX_ABORTED_REQUESTS} items, got {number}"
            )
        for request_id in request.request_ids:
            self._inference.abort(request_id, current_caller())
        return pb.AbortResponse()

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelInfoResponse:
        """Return what the served model is."""
        return model_info_to_proto(self._model())

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetServerInfoResponse:
        """Return what a gateway needs to place requests."""
        cells = [cell for cell in self._cells.statuses() if cell.connected]
        return pb.GetServerInfoResponse(
            active_requests=sum(each.state.num_running + each.state.num_waiting for each in cells),
            is_paused=not self._is_serving(),
            uptime_seconds=time.monotonic() - self._started_at,
            server_type="quire",
            data_parallel_size=max(1, len(cells)),
            block_size=max((each.state.block_size for each in cells), default=0),
            model_dtype=self._model().dtype,
            max_num_seqs=sum(each.state.max_num_seqs for each in cells),
        )

    async def GetLoads(
        self, request: pb.GetLoadsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetLoadsResponse:
        """Return the load of each cell that is connected."""
        cells = [cell for cell in self._cells.statuses() if cell.connected]
        return loads_to_proto(cells, request.dp_rank if request.HasField("dp_rank") else None)

    def _model(self) -> ModelInfo:
        models = self._inference.models()
        if not models:
            raise UnavailableError("no cell is connected")
        return models[0]


class _Outputs:
    """What chunks count: tokens of each output so far, and of the prompt.

    Attributes:
        prompt_token_ids: of the request, once it has started.
    """

    def __init__(self) -> None:
        self.prompt_token_ids: tuple[int, ...] = ()
        self._num_tokens: dict[int, int] = {}

    def chunk(self, event: Started | Delta | Finished) -> pb.GenerateStreamChunk | None:
        """Return the chunk of an event that brings tokens, None of another."""
        if isinstance(event, Started):
            self.prompt_token_ids = event.prompt_token_ids
        if not isinstance(event, Delta) or not (event.token_ids or event.prompt_logprobs):
            return None
        number = self._num_tokens.get(event.index, 0) + len(event.token_ids)
        self._num_tokens[event.index] = number
        return pb.GenerateStreamChunk(
            token_ids=event.token_ids,
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=number,
            output_logprobs=output_logprobs_to_proto(event.logprobs),
            input_logprobs=input_logprobs_to_proto(self.prompt_token_ids, event.prompt_logprobs),
            index=event.index,
        )
