"""A client of gRPC at the HTTP port: its call ends with an error that names the port for gRPC."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from quire import AsyncClient, Client
from quire.contract.errors import ConfigError
from quire.rpc import open_channel
from quire.v1 import inference_pb2, inference_pb2_grpc
from router.http.connection import Connection
from tests.rpc.http_setup import HttpSetup, http_router
from tests.rpc.router_setup import PROMPT
from tests.rpc.test_http_limits import sent_raw

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEADERS, SETTINGS, GOAWAY = 1, 4, 7
HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

CALLS: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "generate": lambda client: client.generate(PROMPT),
    "chat": lambda client: client.chat([{"role": "user", "content": PROMPT}]),
    "embed": lambda client: client.embed(PROMPT),
    "tokenize": lambda client: client.tokenize(PROMPT),
    "list_models": lambda client: client.list_models(),
    "abort": lambda client: client.abort("mine"),
}


def frame(kind: int, stream: int = 0) -> bytes:
    """A frame of HTTP/2 without content."""
    return bytes(3) + struct.pack(">BBI", kind, 0, stream)


def frames_of(content: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, stream and content of each frame."""
    found = []
    while content:
        length = int.from_bytes(content[:3])
        kind, _, stream = struct.unpack_from(">BBI", content, 3)
        end = HEAD_BYTES + length
        assert len(content) >= end, "whole frames"
        found.append((kind, stream, content[HEAD_BYTES:end]))
        content = content[end:]
    return found


# As clients begin: with settings, and a call.
CALL = PREFACE + frame(SETTINGS) + frame(HEADERS, 1)


def told(setup: HttpSetup) -> str:
    return f"this port is for HTTP/1.1, gRPC is at {setup.address}"


def check_refusal(setup: HttpSetup, content: bytes) -> None:
    """Check what the first call of a connection is answered with."""
    text = told(setup).encode()
    call, last = frames_of(content)
    assert call[:2] == (HEADERS, 1)
    assert text in call[2]
    assert last[:2] == (GOAWAY, 0)
    assert last[2][2 * 4 :] == text  # behind the last stream and the code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpSetup]:
    async with http_router(tmp_path_factory.mktemp("model")) as made:
        yield made


async def connected(setup: HttpSetup) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = setup.router.http_address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_each_call_ends_with_an_error_that_names_the_port(setup: HttpSetup) -> None:
    request = inference_pb2.GenerateRequest(text=PROMPT)
    async with open_channel(setup.router.http_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListModels(inference_pb2.ListModelsRequest())
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert caught.value.details() == told(setup)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(request):
                    pytest.fail("was answered")
            assert caught.value.details() == told(setup)


@pytest.mark.parametrize("call", CALLS)
async def test_clients_of_ours_say_it_in_a_line(setup: HttpSetup, call: str) -> None:
    async with AsyncClient(setup.router.http_address) as client:
        with pytest.raises(ConfigError) as caught:
            await CALLS[call](client)
    assert str(caught.value) == told(setup)


async def test_a_client_without_an_event_loop_says_the_same(setup: HttpSetup) -> None:
    def generate() -> None:
        with Client(setup.router.http_address) as client:
            client.generate(PROMPT)

    with pytest.raises(ConfigError) as caught:
        await asyncio.to_thread(generate)
    assert str(caught.value) == told(setup)


@pytest.mark.parametrize(
    "place",
    [1, 15, 16, 17, len(PREFACE) - 1, len(PREFACE), len(PREFACE) + 4, len(CALL) - 1],
)
async def test_what_comes_in_two_writes_is_read_as_one(
    setup: HttpSetup, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    received: asyncio.Queue[int] = asyncio.Queue()
    take = Connection.data_received

    def counted(connection: Connection, data: bytes) -> None:
        take(connection, data)
        received.put_nowait(len(data))

    monkeypatch.setattr(Connection, "data_received", counted)
    reader, writer = await connected(setup)
    writer.write(CALL[:place])
    num_received = 0
    while num_received < place:
        num_received += await received.get()
    writer.write(CALL[place:])
    settings = await reader.readexactly(HEAD_BYTES)
    assert frames_of(settings) == [(SETTINGS, 0, b"")]
    check_refusal(setup, await reader.read())
    writer.close()


async def test_settings_come_at_once_and_the_rest_with_a_call(setup: HttpSetup) -> None:
    """A GOAWAY before it would have gRPC connect again by itself, without an end."""
    reader, writer = await connected(setup)
    writer.write(PREFACE)
    assert await reader.readexactly(HEAD_BYTES) == frame(SETTINGS)
    writer.write(frame(SETTINGS) + frame(HEADERS, 1))
    check_refusal(setup, await reader.read())
    writer.close()


async def test_a_request_that_only_begins_alike_is_one_of_http(setup: HttpSetup) -> None:
    head = b"PRI / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = await sent_raw(setup.router.http_address, head)
    assert answer.startswith(b"HTTP/1.1 405 ")
