"""Clients of a router with API keys: how a key is sent, and where it is not."""

import asyncio
from contextlib import aclosing

import grpc
import pytest
from typer.testing import CliRunner

from launch.cli.console import cell_status
from launch.cli.main import app
from quire import LLM, AsyncClient, Client, SamplingParams
from quire.contract.errors import (
    ConfigError,
    InvalidRequestError,
    RequestExistsError,
    UnauthenticatedError,
)
from quire.contract.inputs import GenerateInput, ResumeInput
from quire.contract.outputs import Finished, FinishReason, Started
from quire.rpc.access import REFUSAL
from quire.rpc.call_errors import error_from_rpc
from quire.sdk.resume import ResumableStream
from quire.wire.inference import resume_input_to_proto


async def test_every_method_of_the_sdk_carries_the_key(keyed) -> None:
    async with AsyncClient(keyed.address, api_key="bob") as client:
        await use_all(client)

    def use_sync() -> None:
        with Client(keyed.address, api_key="bob") as client:
            client.generate("list", SamplingParams(max_tokens=2))
            assert client.detokenize(client.tokenize("list")) == "list"
            assert client.list_models()
            assert next(iter(client.watch_cluster()))
            assert not client.abort("none")

    await asyncio.to_thread(use_sync)


async def use_all(client: AsyncClient) -> None:
    await client.generate("list", SamplingParams(max_tokens=2))
    assert await client.detokenize(await client.tokenize("list")) == "list"
    assert await client.list_models()
    async with aclosing(client.watch_cluster()) as watch:
        assert await anext(watch)
    assert not await client.abort("none")


async def test_the_sdk_takes_the_key_from_the_environment_and_raises_a_refusal(
    keyed, monkeypatch
) -> None:
    with pytest.raises(UnauthenticatedError, match="valid API key"):
        await keyed.client.list_models()
    monkeypatch.setenv("QUIRE_API_KEY", "alice")
    async with AsyncClient(keyed.address) as client:
        assert await client.list_models()
    async with AsyncClient(keyed.address, api_key="wrong") as client:
        with pytest.raises(UnauthenticatedError):
            await client.list_models()


async def test_a_key_has_a_weight_and_a_least_priority(keyed) -> None:
    params = SamplingParams(max_tokens=2)
    async with AsyncClient(keyed.address, api_key="dave") as dave:
        with pytest.raises(
            InvalidRequestError, match=r"priority: must be in \[-1, 100\] with this .* got -2"
        ):
            await dave.generate("list", params, priority=-2)
        await dave.generate("list", params, priority=-1)
    async with AsyncClient(keyed.address, api_key="bob") as bob:
        await bob.generate("list", params, priority=-100)
    tenants = [request.tenant for request in keyed.fake.submitted]
    assert tenants == [("dave", 2.5), ("bob", 1.0)]


async def test_another_key_neither_aborts_nor_takes_over_a_request(keyed) -> None:
    params = SamplingParams(max_tokens=8)
    async with (
        AsyncClient(keyed.address, api_key="alice") as alice,
        AsyncClient(keyed.address, api_key="bob") as bob,
    ):
        keyed.fake.hold()
        async with aclosing(alice.stream("list", params, request_id="hers")) as stream:
            started = await anext(stream)
            assert isinstance(started, Started)
            known = ResumableStream(GenerateInput("list", params, "hers"), 1, 60.0)
            known.take(started)
            assert isinstance(known.request, ResumeInput)
            call = bob._stub.Resume(resume_input_to_proto(known.request), metadata=bob._metadata)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(error_from_rpc(caught.value), RequestExistsError)
            assert not await bob.abort("hers")
            assert not keyed.fake.cancelled
            assert await alice.abort("hers")
            ends = [event async for event in stream if isinstance(event, Finished)]
        assert [end.finish_reason for end in ends] == [FinishReason.ABORT]
        await keyed.fake.until(lambda: keyed.fake.cancelled == ["hers"])


@pytest.mark.parametrize(
    ("target", "is_refused"),
    [
        ("router.example:50051", True),
        ("10.0.0.1:50051", True),
        ("127.0.0.1.example.com:50051", True),
        ("0.0.0.0:50051", True),
        ("dns:///localhost:50051", True),
        ("127.0.0.1:50051", False),
        ("[::1]:50051", False),
        ("localhost:50051", False),
    ],
)
async def test_a_key_leaves_the_machine_in_the_clear_only_if_insecure_is_set(
    target, is_refused, monkeypatch
) -> None:
    monkeypatch.delenv("QUIRE_INSECURE", raising=False)
    for make in (Client, AsyncClient):
        if is_refused:
            with pytest.raises(ConfigError, match="in the clear") as caught:
                make(target, api_key="quire-secret")
            assert "secret" not in caught.value.message
        else:
            make(target, api_key="quire-secret")
        make(target)
        make(target, api_key="quire-secret", insecure=True)
    monkeypatch.setenv("QUIRE_INSECURE", "1")
    Client(target, api_key="quire-secret")


async def test_serve_asks_its_router_with_the_key_where_it_may_go_in_the_clear(
    keyed, monkeypatch
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "alice")
    monkeypatch.delenv("QUIRE_INSECURE", raising=False)
    target = keyed.address.replace("127.0.0.1", "0.0.0.0")  # as of a router that listens on all
    with pytest.raises(ConfigError, match="in the clear"):
        await cell_status(target)
    assert (await cell_status(target, insecure=True)).connected


@pytest.mark.parametrize("key", ["two words", "line\n", "schlüssel", "k" * 257])
def test_what_cannot_be_a_key_is_refused_without_repeating_it(key) -> None:
    with pytest.raises(ConfigError, match="api_key") as caught:
        Client("127.0.0.1:1", api_key=key)
    assert key not in caught.value.message


async def test_in_the_clear_no_proxy_of_the_environment_receives_the_key(
    keyed, monkeypatch
) -> None:
    received: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, address)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    async with server, AsyncClient(keyed.address, api_key="alice") as client:
        assert await client.list_models()

        def ask() -> None:
            with Client(keyed.address, api_key="alice") as sync_client:
                assert sync_client.list_models()

        await asyncio.to_thread(ask)
    assert not received


async def test_the_command_line_sends_the_key_and_does_not_repeat_it(keyed, monkeypatch) -> None:
    def generate(*options: str, **env: str) -> tuple[int, str]:
        command = ["generate", "list", "--target", keyed.address, "--max-tokens", "2", *options]
        result = CliRunner(env=env).invoke(app, command)
        return result.exit_code, result.output

    status, output = await asyncio.to_thread(generate)
    assert status == 1
    assert REFUSAL in output
    for options, env in (((), {"QUIRE_API_KEY": "bob"}), (("--api-key", "bob"), {})):
        status, output = await asyncio.to_thread(generate, *options, **env)
        assert status == 0
    for options in (("--api-key", "quire-secret"), ("--api-key", "quire secret"), ("--help",)):
        status, output = await asyncio.to_thread(generate, *options, QUIRE_API_KEY="quire-secret")
        assert "secret" not in output


async def test_the_offline_api_calls_a_router_that_wants_a_key(keyed) -> None:
    def run(api_key: str) -> int:
        with LLM(target=keyed.address, api_key=api_key) as llm:
            return len(llm.generate(["list"], SamplingParams(max_tokens=2), use_tqdm=False))

    assert await asyncio.to_thread(run, "alice") == 1
    with pytest.raises(UnauthenticatedError):
        await asyncio.to_thread(run, "wrong")
