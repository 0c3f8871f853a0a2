"""A real router on a socket, and clients that read too little, or cannot be reached any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Self

import grpc
import pytest
from structlog.testing import capture_logs

from quire import AsyncClient, SamplingParams
from quire.contract.errors import ReaderStalledError, RequestExistsError, UnavailableError
from quire.contract.inputs import GenerateInput
from quire.contract.outputs import Delta, Started
from quire.rpc.call_errors import error_from_rpc
from quire.v1 import inference_pb2, inference_pb2_grpc
from quire.wire.inference import event_from_proto, generate_input_to_proto
from router.requests.reader import MAX_UNREAD_TOKENS
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.router_setup import PROMPT, Setup, echoed, running_router

NUM_TOKENS = 20_000
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
Messages = AsyncIterator[inference_pb2.GenerateResponse]
# So that a stream is full after few messages.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))


def long_answers() -> FakeScheduler:
    return FakeScheduler(model=replace(MODEL, max_model_len=2 * NUM_TOKENS))


@asynccontextmanager
async def slow_call(
    setup: Setup, request_id: str, heartbeat_ms: int | None = None
) -> AsyncIterator[Messages]:
    """The messages of a call that has read Started, and reads no more until it is asked to."""
    async with grpc.aio.insecure_channel(setup.address, options=SMALL_WINDOW) as channel:
        request = GenerateInput(PROMPT, PARAMS, request_id, heartbeat_ms=heartbeat_ms)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(generate_input_to_proto(request))
        messages = aiter(call)
        assert isinstance(event_from_proto(await anext(messages)), Started)
        yield messages
        call.cancel()


async def tokens_of(messages: Messages) -> list[int]:
    """Read a stream to its end, and return its tokens."""
    events = [event_from_proto(message) async for message in messages]
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


async def test_a_request_is_paused_until_its_client_reads_and_loses_no_token(tmp_path) -> None:
    async with running_router(tmp_path, long_answers()) as setup:
        fake = setup.fake
        async with slow_call(setup, "slow") as call:
            await fake.until(lambda: fake.cancelled == ["slow"])
            num_computed = len(fake.submitted[0].output)
            assert MAX_UNREAD_TOKENS <= num_computed < NUM_TOKENS // 2
            # Others are served meanwhile.
            other = await setup.client.generate(PROMPT, SamplingParams(max_tokens=4))
            assert other.token_ids == echoed(4)
            assert fake.num_running() == 0
            assert tuple(await tokens_of(call)) == echoed(NUM_TOKENS)
        assert fake.submitted[-1].num_resumed > 0


async def test_a_paused_request_can_be_aborted(tmp_path) -> None:
    async with running_router(tmp_path, long_answers()) as setup:
        async with slow_call(setup, "slow") as call:
            await setup.fake.until(lambda: setup.fake.cancelled == ["slow"])
            assert await setup.client.abort("slow")
            token_ids = tuple(await tokens_of(call))
        assert token_ids == echoed(len(token_ids))
        assert len(setup.fake.submitted) == 1


async def test_a_client_that_goes_while_it_does_not_read_is_no_error(tmp_path) -> None:
    async with running_router(tmp_path, long_answers()) as setup:
        with capture_logs() as lines:
            async with slow_call(setup, "slow"):
                await setup.fake.until(lambda: setup.fake.cancelled == ["slow"])
            await until_free(setup.client, "slow")
            while not any(each["event"] == "request_finished" for each in lines):
                await setup.client.list_models()
    assert [each for each in lines if each["log_level"] == "error"] == []


@pytest.mark.parametrize("heartbeat_ms", [None, 100])
async def test_a_stream_that_nobody_reads_ends_with_the_reason(tmp_path, heartbeat_ms) -> None:
    async with running_router(tmp_path, long_answers(), stalled_reader_timeout_s=0.2) as setup:
        async with slow_call(setup, "slow", heartbeat_ms) as call:
            await setup.fake.until(lambda: setup.fake.cancelled == ["slow"])
            await until_free(setup.client, "slow")
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in call:
                    pass
        assert failed.value.code() is grpc.StatusCode.ABORTED
        error = error_from_rpc(failed.value)
        assert isinstance(error, ReaderStalledError)
        assert "0.2 s" in error.message


@pytest.mark.deep
async def test_a_client_whose_host_is_gone_is_found(tmp_path) -> None:
    """It sends no FIN: nothing comes from it any more, and nothing reaches it."""
    async with running_router(tmp_path) as setup, Cable(setup.address) as cable:
        setup.fake.hold()
        async with AsyncClient(cable.address, resume_timeout=0.0) as client:
            stream = client.stream(PROMPT, request_id="gone")
            assert isinstance(await anext(stream), Started)
            cable.cut()
            async with asyncio.timeout(60):
                await setup.fake.until(lambda: setup.fake.cancelled == ["gone"])
            with pytest.raises(UnavailableError):
                await anext(stream)


class Cable:
    """A way to a server that can be cut: both ends keep their connections."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, on = await asyncio.open_connection(self._host, int(self._port))
        self._writers += [back, on]
        for reader, writer in ((near, on), (far, back)):
            self._tasks.append(asyncio.create_task(self._carry(reader, writer)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)

    def cut(self) -> None:
        """Carry nothing from now on."""
        for task in self._tasks:
            task.cancel()

    def drop(self) -> None:
        """Break all connections, for both ends to see."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        self._server.close()


async def until_free(client: AsyncClient, request_id: str) -> None:
    """Return when no open request has an id; the test's time limit bounds the wait."""
    while True:
        with suppress(RequestExistsError):
            await client.generate("The", SamplingParams(max_tokens=1), request_id=request_id)
            return
