"""The router's process interface: ready and error lines, signals, exit status."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire import AsyncClient, SamplingParams
from quire.contract.errors import ModelLoadError, UnavailableError
from quire.rpc import open_channel
from quire.rpc.start import CONFIG_ERROR_STATUS
from router.config import RouterConfig
from router.server import serve
from router.text.tokenize import Tokenizer
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.fakes.small_tokenizers import byte_level, save

DEMO_MODEL = Path(__file__).resolve().parents[2] / "quire" / "demo_model"


@pytest.fixture(autouse=True)
def logs_as_other_tests_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service sets up the log of its process, which here is that of all tests."""
    monkeypatch.setattr("quire.observe.log.configure", lambda *_: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save(byte_level(), tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def serving(config: RouterConfig) -> AsyncIterator[tuple[str, "asyncio.Task[int]"]]:
    """Run `serve`; yield what it announced, and its task; stop it with SIGTERM."""
    read_fd, write_fd = os.pipe()
    task = asyncio.create_task(serve(config, write_fd))
    with os.fdopen(read_fd) as pipe:
        line = await asyncio.to_thread(pipe.readline)
    try:
        yield line.strip(), task
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await task


async def test_ready_then_serves_then_stops_on_sigterm(model) -> None:
    async with running_scheduler(FakeScheduler()) as scheduler:
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=0)
        async with serving(config) as (line, task):
            word, _, address = line.partition(" ")
            assert word == "ready"
            async with AsyncClient(address) as client:
                completion = await client.generate("list", SamplingParams(max_tokens=3))
                assert len(completion.token_ids) == 3
    assert task.result() == 0


async def test_a_stream_that_outlasts_the_drain_timeout_is_unavailable(model) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_scheduler(fake) as scheduler:
        config = RouterConfig(
            model=str(model), schedulers=(scheduler,), port=0, drain_timeout_s=0.1
        )
        async with serving(config) as (line, _):
            client = AsyncClient(line.removeprefix("ready "), resume_timeout=0.0)
            task = asyncio.create_task(client.generate("list", request_id="cut"))
            await fake.until(lambda: fake.num_running() == 1)
        with pytest.raises(UnavailableError):
            await task
        await client.close()
        # Its blocks are freed by the session's end at the latest.
        await fake.until(lambda: fake.num_running() == 0)


async def test_sigterm_finishes_what_runs_and_sends_what_is_new_elsewhere(model) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_scheduler(fake) as scheduler:
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=0)
        async with serving(config) as (line, task):
            address = line.removeprefix("ready ")
            async with AsyncClient(address) as client, open_channel(address) as watcher:
                running = asyncio.create_task(
                    client.generate("list", SamplingParams(max_tokens=3), request_id="runs")
                )
                await fake.until(lambda: fake.num_running() == 1)
                states = watch_health(watcher)
                assert await anext(states) == health_pb2.HealthCheckResponse.SERVING
                os.kill(os.getpid(), signal.SIGTERM)
                assert await anext(states) == health_pb2.HealthCheckResponse.NOT_SERVING
                await until_it_refuses(address)
                async with AsyncClient(address) as late:
                    with pytest.raises(UnavailableError):
                        await late.generate("list", SamplingParams(max_tokens=3))
                assert not task.done()
                await fake.release()
                assert len((await running).token_ids) == 3
                # Far less than the 30 s it would give: a watcher is not waited for.
                assert await asyncio.wait_for(task, 10) == 0


async def test_a_request_that_is_being_tokenized_is_finished_too(model, monkeypatch) -> None:
    has_come, may_go, encode = asyncio.Event(), asyncio.Event(), Tokenizer.encode

    async def held(self, *args, **kwargs):
        has_come.set()
        await may_go.wait()
        return await encode(self, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode", held)
    async with running_scheduler(FakeScheduler()) as scheduler:
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=0)
        async with serving(config) as (line, task):
            address = line.removeprefix("ready ")
            async with AsyncClient(address) as client:
                running = asyncio.create_task(client.generate("list", SamplingParams(max_tokens=3)))
                await has_come.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                await until_it_refuses(address)
                # Longer than the time that calls without a waiting client are given.
                await asyncio.wait({task, running}, timeout=2, return_when=asyncio.FIRST_COMPLETED)
                may_go.set()
                assert len((await running).token_ids) == 3
                assert await asyncio.wait_for(task, 10) == 0


async def test_new_requests_are_taken_while_health_reports_that_the_router_drains(model) -> None:
    async with running_scheduler(FakeScheduler()) as scheduler:
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=0, drain_delay_s=3600)
        async with serving(config) as (line, task):
            address = line.removeprefix("ready ")
            async with AsyncClient(address) as client, open_channel(address) as watcher:
                states = watch_health(watcher)
                assert await anext(states) == health_pb2.HealthCheckResponse.SERVING
                os.kill(os.getpid(), signal.SIGTERM)
                assert await anext(states) == health_pb2.HealthCheckResponse.NOT_SERVING
                completion = await client.generate("list", SamplingParams(max_tokens=3))
                assert len(completion.token_ids) == 3
                os.kill(os.getpid(), signal.SIGTERM)  # a second one does not wait
                assert await asyncio.wait_for(task, 10) == 0


async def until_it_refuses(address: str) -> None:
    while True:
        async with open_channel(address) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            except grpc.aio.AioRpcError as error:
                # A call that meets the very moment at which the server closes is cancelled.
                if error.code() is not grpc.StatusCode.CANCELLED:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    return


async def watch_health(channel) -> AsyncIterator[int]:
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    try:
        async for answer in call:
            yield answer.status
    finally:
        call.cancel()


async def test_starts_without_a_scheduler_and_reports_not_serving(model, monkeypatch) -> None:
    monkeypatch.setattr("router.server.START_WAIT_S", 0.0)
    config = RouterConfig(model=str(model), schedulers=("127.0.0.1:1",), port=0)
    async with serving(config) as (line, _), open_channel(line.removeprefix("ready ")) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_port_in_use_is_one_line_and_status_one(model) -> None:
    async with running_scheduler(FakeScheduler()) as scheduler:
        port = int(scheduler.rpartition(":")[2])
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=port)
        async with serving(config) as (line, task):
            assert line.startswith("error ")
            assert str(port) in line
            assert await task == 1


@pytest.mark.parametrize("content", [{}, {"tokenizer.json": "{"}, {"config.json": "[]"}])
async def test_unusable_tokenizer_is_one_line_and_its_own_status(tmp_path, content) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    config = RouterConfig(model=str(tmp_path), port=0)
    async with serving(config) as (line, task):
        assert line.startswith("error ")
        assert str(tmp_path) in line
        assert await task == CONFIG_ERROR_STATUS
    with pytest.raises(ModelLoadError):
        await Tokenizer.load(str(tmp_path))


@pytest.mark.skipif(not (DEMO_MODEL / "tokenizer.json").exists(), reason="no embedded model")
async def test_embedded_tokenizer_streams_what_it_decodes() -> None:
    tokenizer = await Tokenizer.load(str(DEMO_MODEL))
    try:
        vocab_size = json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"]
        for text in ("The list class", "naïve 中文 😀 e\u0301", "\tdef f(x):\n        return x"):
            token_ids = list(await tokenizer.encode(text, add_special_tokens=False))
            assert max(token_ids) < vocab_size
            detokenizer = tokenizer.detokenizer([token_ids[-1]], skip_special_tokens=True)
            pieces = [detokenizer.push(token_id) for token_id in token_ids]
            assert not any("\ufffd" in piece for piece in pieces)
            assert "".join(pieces) + detokenizer.flush() == text
            assert await tokenizer.decode(token_ids) == text
    finally:
        tokenizer.close()
