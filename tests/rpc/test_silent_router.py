"""A router that is stopped keeps its connections: clients that have another one leave it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from quire import AsyncClient, Client, SamplingParams
from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import GenerateInput
from quire.contract.outputs import Completion, Started
from quire.rpc import Server, open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.sdk.silence import LONE_HEARTBEAT_MS
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.inference import (
    event_to_proto,
    generate_input_to_proto,
    heartbeat_to_proto,
    is_heartbeat,
)
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.router_setup import PROMPT_IDS, TEXT_ID, echoed, router_for, running_router

PARAMS = SamplingParams(max_tokens=8)


class StoppedRouter(inference_pb2_grpc.InferenceServiceServicer):
    """Begins its first stream, shows that it sends heartbeats, and sends nothing from then on."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []

    async def Generate(self, request, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        self.requests.append(request)
        if len(self.requests) == 1:
            started = Started("mine", len(PROMPT_IDS), 77, "", TEXT_ID, (), PARAMS.max_tokens or 0)
            await context.write(event_to_proto(started))
            await context.write(heartbeat_to_proto())
        await asyncio.Event().wait()


@asynccontextmanager
async def stopped_router() -> AsyncIterator[tuple[StoppedRouter, str]]:
    stopped, server = StoppedRouter(), Server(["quire.v1.InferenceService"])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(stopped, server.grpc_server)
    try:
        yield stopped, await server.start("127.0.0.1", 0)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("kind", [AsyncClient, Client])
async def test_streams_leave_a_router_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AsyncClient] | type[Client]
) -> None:
    monkeypatch.setattr("quire.sdk.silence.LIMIT_S", 0.3)
    monkeypatch.setattr("random.randrange", lambda stop: 0)
    fake = FakeScheduler()
    async with AsyncExitStack() as stack:
        stopped, first = await stack.enter_async_context(stopped_router())
        scheduler = await stack.enter_async_context(running_scheduler(fake))
        _, _, second = await stack.enter_async_context(router_for(tmp_path, (scheduler,)))

        async def generate() -> Completion:
            if isinstance(client, AsyncClient):
                return await client.generate(PROMPT_IDS, PARAMS)
            return await asyncio.to_thread(client.generate, PROMPT_IDS, PARAMS)

        if kind is AsyncClient:
            client = await stack.enter_async_context(AsyncClient((first, second)))
        else:
            client = stack.enter_context(Client((first, second)))
        # The second begins at the stopped router, or at the other one: its heartbeats are known.
        for completion in await asyncio.gather(generate(), generate()):
            assert completion.token_ids == echoed(8)
        assert (await generate()).token_ids == echoed(8)
    assert 1 <= len(stopped.requests) <= 2
    assert all(request.HasField("heartbeat_ms") for request in stopped.requests)
    assert len(fake.submitted) == 3


@pytest.mark.parametrize(("resume_timeout", "heartbeat_ms"), [(60.0, LONE_HEARTBEAT_MS), (0.0, 0)])
async def test_a_client_of_one_router_asks_for_heartbeats_only_to_resume(
    resume_timeout: float, heartbeat_ms: int
) -> None:
    async with (
        stopped_router() as (stopped, address),
        AsyncClient(address, resume_timeout=resume_timeout) as client,
    ):
        stream = client.stream(PROMPT_IDS, PARAMS)
        assert isinstance(await anext(stream), Started)
        assert stopped.requests[0].HasField("heartbeat_ms") == bool(heartbeat_ms)
        assert stopped.requests[0].heartbeat_ms == heartbeat_ms
        await stream.aclose()


def ask(heartbeat_ms: int | None) -> inference_pb2.GenerateRequest:
    return generate_input_to_proto(GenerateInput(PROMPT_IDS, PARAMS, heartbeat_ms=heartbeat_ms))


async def test_who_asks_gets_heartbeats_while_there_is_nothing_else(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        setup.fake.hold()
        quiet, asked = stub.Generate(ask(None)), stub.Generate(ask(100))
        seen: list[str] = []
        async for response in asked:
            seen.append(response.WhichOneof("event"))
            if seen[-3:] == ["heartbeat"] * 3 and "started" in seen:
                await setup.fake.release()
        assert seen[-1] == "finished"
        assert [each for each in seen if each != "heartbeat"][:2] == ["started", "delta"]
        assert not any([is_heartbeat(response) async for response in quiet])


async def test_who_waits_for_a_cell_gets_heartbeats_too(tmp_path: Path) -> None:
    async with (
        router_for(tmp_path, ("127.0.0.1:1",)) as (_, _, address),
        open_channel(address) as channel,
    ):
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(ask(100))
        assert is_heartbeat(await call.read())
        assert is_heartbeat(await call.read())
        call.cancel()


async def test_an_interval_out_of_bounds_is_refused(tmp_path: Path) -> None:
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        for wrong in (0, 99, 60_001):
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(ask(wrong))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            error = error_from_rpc(caught.value)
            assert isinstance(error, InvalidRequestError)
            assert str(error) == f"heartbeat_ms: must be in [100, 60000], got {wrong}"
