"""A router with API keys: which calls it lets in, which it refuses, and how."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from quire import AsyncClient, SamplingParams
from quire.contract.errors import ConfigError, UnauthenticatedError
from quire.contract.outputs import Finished, Started
from quire.observe.tracing import Span, TraceContext
from quire.rpc import open_channel
from quire.rpc.access import OPEN_METHODS, REFUSAL
from quire.rpc.tracing import _start as begin_span
from quire.security.api_key_file import ApiKey, digest, editing
from quire.security.api_keys import utc_now
from router.config import RouterConfig
from tests.fakes.fake_scheduler import FakeScheduler
from tests.rpc.router_setup import running_router

GENERATE = "/quire.v1.InferenceService/Generate"
ABORT = "/quire.v1.InferenceService/Abort"


async def call(
    address: str, method: str, *metadata: tuple[str, str | bytes], request: bytes = b""
) -> grpc.aio.AioRpcError | None:
    """Call any method with raw bytes and return how it was refused, if it was."""
    async with open_channel(address) as channel:
        stream = channel.unary_stream(method)(request, metadata=metadata)
        try:
            async for _ in stream:
                break
        except grpc.aio.AioRpcError as error:
            return error
        finally:
            stream.cancel()
    return None


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((), id="none"),
        pytest.param((("authorization", "Bearer wrong"),), id="wrong"),
        pytest.param((("authorization", "Bearer old"),), id="expired"),
        pytest.param((("authorization", "Bearer "),), id="empty"),
        pytest.param((("authorization", "Bearer"),), id="no key"),
        pytest.param((("authorization", ""),), id="empty value"),
        pytest.param((("authorization", "alice"),), id="no scheme"),
        pytest.param((("authorization", "Basic alice"),), id="another scheme"),
        pytest.param((("authorization", "Beareralice"),), id="no space"),
        pytest.param((("authorization", "Bearer alice, Bearer alice"),), id="list"),
        pytest.param((("authorization", f"Bearer {digest('alice').hex()}"),), id="the digest"),
        pytest.param((("authorization-bin", b"Bearer alice"),), id="binary"),
        pytest.param((("api-key", "alice"), ("x-api-key", "alice")), id="another header"),
        pytest.param(
            (("authorization", "Bearer wrong"), ("authorization", "Bearer alice")), id="two"
        ),
        pytest.param(
            (("authorization", "Bearer alice"), ("authorization", "Bearer wrong")), id="two more"
        ),
        pytest.param((("authorization", "Bearer " + "a" * 4000),), id="long"),
    ],
)
async def test_a_call_without_a_valid_key_is_refused_in_one_way(keyed, metadata) -> None:
    for method in (GENERATE, ABORT, "/quire.v1.InferenceService/Unknown", "/nothing/here"):
        error = await call(keyed.address, method, *metadata)
        assert error is not None
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED
        assert error.details() == REFUSAL
        assert "QUIRE_API_KEY or --api-key" in REFUSAL  # what a person at a terminal can do
        info = error_details_pb2.ErrorInfo()
        assert rpc_status.from_call(error).details[0].Unpack(info)
        assert info.reason == "API_KEY_INVALID"
    assert not keyed.fake.submitted


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_valid_key_is_let_through(keyed, scheme) -> None:
    assert await call(keyed.address, ABORT, ("authorization", f"{scheme} alice")) is None
    unknown = await call(keyed.address, "/nothing/here", ("authorization", f"{scheme} alice"))
    assert unknown is not None
    assert unknown.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_health_and_reflection_are_open(keyed) -> None:
    async with open_channel(keyed.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        listed = await health.List(health_pb2.HealthListRequest())
        assert listed.statuses["quire.v1.InferenceService"].status == answer.status
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert await watch.read()
        watch.cancel()
        for version in ("v1", "v1alpha"):
            call = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert (await call.read()).list_services_response.service
            call.cancel()


def test_the_open_methods_are_these_and_no_more() -> None:
    assert {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    } == OPEN_METHODS


async def test_streams_that_need_no_key_are_bounded_and_given_back(keyed, monkeypatch) -> None:
    monkeypatch.setattr("quire.rpc.access.MAX_OPEN_STREAMS", 3)
    reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with open_channel(keyed.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            assert await watch.read()
        reflection = channel.stream_stream(reflect)()
        await reflection.write(b"")
        assert await reflection.read()
        for refused in (
            health.Watch(health_pb2.HealthCheckRequest()),
            channel.stream_stream(reflect)(),
        ):
            assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # What ends at once is not counted.
        assert await health.Check(health_pb2.HealthCheckRequest())
        watches[0].cancel()
        async with asyncio.timeout(10):
            while await call(keyed.address, "/grpc.health.v1.Health/Watch") is not None:
                await asyncio.sleep(0.01)
        for each in (*watches, reflection):
            each.cancel()


async def test_a_revoked_key_ends_at_once_on_an_open_connection_but_not_its_streams(keyed) -> None:
    keyed.fake.hold()
    async with AsyncClient(keyed.address, api_key="alice") as client:
        stream = client.stream("list", SamplingParams(max_tokens=3, ignore_eos=True))
        assert isinstance(await anext(stream), Started)
        await client.list_models()

        keyed.revoke("alice")
        with pytest.raises(UnauthenticatedError):
            async with asyncio.timeout(10):
                while True:
                    await client.list_models()
                    await asyncio.sleep(0.01)

        await keyed.fake.release()
        events = [event async for event in stream]
        assert isinstance(events[-1], Finished)
    async with AsyncClient(keyed.address, api_key="bob") as client:
        assert await client.list_models()


async def test_a_key_that_was_added_is_let_in_without_a_restart(keyed) -> None:
    with editing(keyed.file) as keys:
        keys.append(ApiKey("carol", digest("carol"), utc_now()))
    async with AsyncClient(keyed.address, api_key="carol") as client, asyncio.timeout(10):
        while True:
            try:
                assert await client.list_models()
                return
            except UnauthenticatedError:
                await asyncio.sleep(0.01)


async def test_log_lines_of_a_call_have_the_name_of_its_key_and_never_the_key(keyed) -> None:
    with capture_logs([merge_contextvars]) as lines:
        for key in ("alice", "bob"):
            async with AsyncClient(keyed.address, api_key=key) as client:
                await client.generate("list", SamplingParams(max_tokens=2), request_id=f"of-{key}")
        await call(keyed.address, ABORT, ("authorization", "Bearer wrong-secret"))
    events = {(line.get("request_id"), line.get("api_key"), line["event"]) for line in lines}
    for key in ("alice", "bob"):
        for event in ("request_queued", "request_finished"):
            assert (f"of-{key}", key, event) in events
    assert "secret" not in repr(lines)


async def test_a_call_is_refused_before_its_request_is_there(keyed) -> None:
    """The refusal comes though not one byte of the message was sent."""
    async with open_channel(keyed.address) as channel:
        stream = channel.stream_stream(ABORT)(metadata=(("authorization", "Bearer wrong"),))
        async with asyncio.timeout(10):
            assert await stream.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_made_up_method_becomes_no_name_of_a_span(keyed, monkeypatch) -> None:
    begun: list[str] = []

    def start(method: str, parent: TraceContext | None) -> Span:
        begun.append(method)
        return begin_span(method, parent)

    monkeypatch.setattr("quire.rpc.tracing._start", start)
    for method in ("/quire.v1.Made/Up", "/quire.v1.InferenceService/MadeUp", ABORT):
        await call(keyed.address, method)
    assert begun == [ABORT[1:]]


async def test_thousands_of_wrong_keys_at_once_disturb_no_other_client(keyed) -> None:
    async with (
        AsyncClient(keyed.address, api_key="alice") as client,
        open_channel(keyed.address) as channel,
    ):
        method = channel.unary_unary(ABORT)

        async def guess(number: int) -> grpc.StatusCode:
            metadata = (("authorization", f"Bearer guess-{number}"),)
            return await method(b"", metadata=metadata).code()

        guesses = [asyncio.create_task(guess(number)) for number in range(5000)]
        completion = await client.generate("list", SamplingParams(max_tokens=3, ignore_eos=True))
        assert len(completion.token_ids) == 3
        assert set(await asyncio.gather(*guesses)) == {grpc.StatusCode.UNAUTHENTICATED}


async def test_a_router_does_not_start_without_its_file_of_keys(tmp_path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        async with running_router(tmp_path, FakeScheduler(), api_keys=tmp_path / "none"):
            pass
    assert RouterConfig(model=str(tmp_path)).api_keys is None
