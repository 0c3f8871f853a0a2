"""What a handler raises, as its client sees it; a server that binds, answers and stops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from quire import rpc
from quire.contract.errors import InvalidRequestError, OverloadedError, UnavailableError
from quire.v1 import inference_pb2

SECRET = "a prompt that no other may see"
NAME = "quire.test.Thrower"


class Thrower:
    """Handlers of every shape, that raise what they are given."""

    def __init__(self) -> None:
        self.error: Exception = RuntimeError(SECRET)
        self.stream_closed = asyncio.Event()

    async def unary(self, request, context):
        raise self.error

    async def stream(self, request, context):
        try:
            yield inference_pb2.AbortResponse(aborted=True)
            raise self.error
        finally:
            self.stream_closed.set()

    async def writer(self, request, context):
        await context.write(inference_pb2.AbortResponse(aborted=True))
        raise self.error

    async def echo(self, requests, context):
        async for request in requests:
            yield inference_pb2.AbortResponse(aborted=request.request_id == "yes")
        raise self.error

    async def endless(self, request, context):
        try:
            while True:
                yield inference_pb2.AbortResponse()
                await asyncio.sleep(0)
        finally:
            self.stream_closed.set()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        def handler(make: Callable[..., grpc.RpcMethodHandler], behavior) -> grpc.RpcMethodHandler:
            return make(
                behavior,
                request_deserializer=inference_pb2.AbortRequest.FromString,
                response_serializer=inference_pb2.AbortResponse.SerializeToString,
            )

        return {
            "Unary": handler(grpc.unary_unary_rpc_method_handler, self.unary),
            "Stream": handler(grpc.unary_stream_rpc_method_handler, self.stream),
            "Writer": handler(grpc.unary_stream_rpc_method_handler, self.writer),
            "Endless": handler(grpc.unary_stream_rpc_method_handler, self.endless),
            "Echo": handler(grpc.stream_stream_rpc_method_handler, self.echo),
        }


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Thrower, grpc.aio.Channel, rpc.Server]]:
    server = rpc.Server([NAME], max_receive_bytes=2**20)
    thrower = Thrower()
    server.grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(NAME, thrower.handlers()),)
    )
    address = await server.start("127.0.0.1", 0)
    try:
        async with rpc.open_channel(address) as channel:
            yield thrower, channel, server
    finally:
        await server.stop(0)


async def fail(
    channel: grpc.aio.Channel, method: str, request: bytes = b""
) -> grpc.aio.AioRpcError:
    """Call a method; return the error it must end with."""
    path = f"/{NAME}/{method}"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "Unary":
            await channel.unary_unary(path)(request)
        elif method == "Echo":
            async for _ in channel.stream_stream(path)(iter([request])):
                pass
        else:
            async for _ in channel.unary_stream(path)(request):
                pass
    return caught.value


@pytest.mark.parametrize("method", ["Unary", "Stream", "Writer", "Echo"])
async def test_expected_error_reaches_the_client_with_details(method: str) -> None:
    async with running() as (thrower, channel, _):
        thrower.error = InvalidRequestError("top_p", "must be in (0, 1], got 2")
        error = await fail(channel, method)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "top_p: must be in (0, 1], got 2"
        status = rpc_status.from_call(error)
        bad_request = error_details_pb2.BadRequest()
        assert status.details[1].Unpack(bad_request)
        assert bad_request.field_violations[0].field == "top_p"

        thrower.error = OverloadedError("full", 250)
        error = await fail(channel, method)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        retry = error_details_pb2.RetryInfo()
        assert rpc_status.from_call(error).details[1].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() == 250


@pytest.mark.parametrize("method", ["Unary", "Stream", "Writer", "Echo"])
async def test_unexpected_error_holds_nothing_of_the_request(method: str) -> None:
    async with running() as (_, channel, _):
        error = await fail(channel, method)
        assert error.code() == grpc.StatusCode.INTERNAL
        assert SECRET not in str(error)
        assert "internal error" in error.details()


@pytest.mark.parametrize("method", ["Unary", "Stream", "Writer"])
async def test_malformed_request_is_invalid_without_library_text(method: str) -> None:
    async with running() as (_, channel, _):
        error = await fail(channel, method, b"\xff\xff\xff not a message")
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "request: must be a well-formed protobuf message, got other bytes"


async def test_a_message_beyond_the_limit_is_refused() -> None:
    async with running() as (_, channel, _):
        error = await fail(channel, "Unary", b"x" * (2**20 + 1))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_cancelled_stream_runs_its_finally() -> None:
    async with running() as (thrower, channel, _):
        call = channel.unary_stream(f"/{NAME}/Endless")(b"")
        await call.read()
        call.cancel()
        await thrower.stream_closed.wait()


async def test_health_follows_set_serving() -> None:
    async with running() as (_, channel, server):
        health = health_pb2_grpc.HealthStub(channel)
        for serving, expected in ((None, "NOT_SERVING"), (True, "SERVING"), (False, "NOT_SERVING")):
            if serving is not None:
                await server.set_serving(serving)
            for name in ("", NAME):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                got = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                assert got == expected


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_answers_under_both_names(version: str) -> None:
    async with running() as (_, channel, _):
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        names = [service.name for service in answer.list_services_response.service]
        assert NAME in names
        assert "grpc.health.v1.Health" in names


async def test_a_port_in_use_is_named() -> None:
    async with running() as (_, _, server):
        port = int(server.address.rpartition(":")[2])
        second = rpc.Server([NAME])
        with pytest.raises(UnavailableError, match=str(port)):
            await second.start("127.0.0.1", port)
        await second.stop(0)


def test_announce_writes_one_line(tmp_path) -> None:
    path = tmp_path / "pipe"
    with path.open("w") as pipe:
        import os

        rpc.announce(os.dup(pipe.fileno()), "error two\nlines")
    rpc.announce(None, "ignored")
    assert path.read_text() == "error two lines\n"
