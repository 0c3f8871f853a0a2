"""The router's process interface: ready and error lines, signals, exit status."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire import AsyncClient, SamplingParams
from quire.errors import ModelLoadError, UnavailableError
from quire.rpc import open_channel
from router.config import RouterConfig
from router.server import serve
from router.tokenize import Tokenizer
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.fakes.small_tokenizers import byte_level, save

DEMO_MODEL = Path(__file__).resolve().parents[2] / "quire" / "demo_model"


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


async def test_a_stream_cut_by_the_routers_stop_is_unavailable(model) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_scheduler(fake) as scheduler:
        config = RouterConfig(model=str(model), schedulers=(scheduler,), port=0)
        async with serving(config) as (line, _):
            client = AsyncClient(line.removeprefix("ready "))
            task = asyncio.create_task(client.generate("list", request_id="cut"))
            await fake.until(lambda: fake.num_running() == 1)
        with pytest.raises(UnavailableError):
            await task
        await client.close()
        # Its blocks are freed by the session's end at the latest.
        await fake.until(lambda: fake.num_running() == 0)


async def test_starts_without_a_scheduler_and_says_not_serving(model) -> None:
    config = RouterConfig(
        model=str(model), schedulers=("127.0.0.1:1",), port=0, connect_timeout_s=0.1
    )
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
async def test_unusable_tokenizer_is_one_line_and_status_one(tmp_path, content) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    config = RouterConfig(model=str(tmp_path), port=0)
    async with serving(config) as (line, task):
        assert line.startswith(f"error cannot load the tokenizer of {tmp_path}: ")
        assert await task == 1
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
