"""Services of different releases meet: one protocol version apart they work, two they refuse."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from quire import AsyncClient, SamplingParams
from quire.contract import versions
from quire.contract.errors import InvalidRequestError, ProtocolDiffersError
from quire.contract.versions import UNVERSIONED, check_protocol
from quire.rpc import open_channel
from quire.rpc.call_metadata import PROTOCOL_VERSION
from quire.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from router.server import Router
from tests.chaos.cluster import free_port
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.fakes.fake_scheduler import running_scheduler as running_fake
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.fakes.previous_release import SpeaksPreviousRelease
from tests.rpc.cells_setup import connected
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.router_setup import PROMPT, echoed, router_for, running_router
from tests.rpc.scheduler_requests import SHORT, reference

OURS = 2
NEAR, FAR = (1, 3), (0, 4)
WAIT_S = 20.0


@pytest.fixture
def second_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """This release speaks version 2, so that there is one before the one before."""
    monkeypatch.setattr(versions, "PROTOCOL", OURS)


def sent(version: int) -> tuple[tuple[str, str], ...]:
    """Metadata of a peer; one of the unversioned past sends none."""
    return ((PROTOCOL_VERSION, str(version)),) if version != UNVERSIONED else ()


def assert_names_both(words: str, version: int, peer: str) -> None:
    assert words.startswith("protocol_version: must be in [1, 3]")
    assert f"whose own is {OURS}, got {version} of {peer}" in words


def test_the_release_before_is_understood_today() -> None:
    check_protocol(versions.PROTOCOL - 1, "a peer")
    check_protocol(versions.PROTOCOL + 1, "a peer")
    with pytest.raises(ProtocolDiffersError, match="got"):
        check_protocol(versions.PROTOCOL + 2, "a peer")


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", NEAR)
async def test_a_router_one_version_away_is_welcomed(version: int) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at, sent(version)) as router,
    ):
        await router.submit(1, [5, 6, 7], SHORT)
        await router.finish(1)
        assert router.tokens[1] == reference([5, 6, 7], SHORT)


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", FAR)
async def test_a_router_two_versions_away_is_refused(version: int) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_channel(at) as channel,
    ):
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Session(metadata=sent(version)).read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert_names_both(caught.value.details() or "", version, "a router")


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", FAR)
async def test_a_router_refuses_a_scheduler_until_it_is_upgraded(
    tmp_path: Path, version: int
) -> None:
    fake = FakeScheduler()
    fake.protocol_version = version
    async with (
        running_fake(fake) as at,
        router_for(tmp_path, (at,)) as (router, client, _),
    ):
        await fake.until(lambda: fake.num_sessions >= 2)
        assert_names_both(
            router._cells.why_not_serving.removeprefix(f"{at}: "), version, f"scheduler {at}"
        )
        fake.protocol_version = OURS
        await asyncio.wait_for(router.wait_until_serving(), WAIT_S)
        assert router._cells.why_not_serving == ""
        answer = await client.generate(PROMPT, SamplingParams(max_tokens=5))
        assert answer.token_ids == echoed(5)


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", NEAR)
async def test_a_router_takes_a_scheduler_one_version_away(tmp_path: Path, version: int) -> None:
    fake = FakeScheduler()
    fake.protocol_version = version
    async with running_router(tmp_path, fake) as setup:
        answer = await setup.client.generate(PROMPT, SamplingParams(max_tokens=5))
        assert answer.token_ids == echoed(5)


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", FAR)
async def test_a_scheduler_waits_for_workers_that_it_understands(version: int) -> None:
    async with (
        FakeWorker(protocol_version=version) as worker,
        running_scheduler(worker.address, wait=False) as (scheduler, _),
    ):
        workers, serving = scheduler._driver.workers, scheduler.wait_until_serving()
        running = asyncio.create_task(serving)
        async with asyncio.timeout(WAIT_S):
            while not workers.why_unformed:
                await asyncio.sleep(0)
        assert_names_both(workers.why_unformed, version, f"worker {worker.address}")
        assert not worker.load_requests
        worker.protocol_version = OURS
        await asyncio.wait_for(running, WAIT_S)
        assert workers.why_unformed == ""


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize(("version", "is_taken"), [(1, True), (3, True), (0, False), (4, False)])
async def test_a_worker_looks_at_who_asks(version: int, is_taken: bool) -> None:
    async with FakeWorker() as worker, open_channel(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        call = stub.Describe(worker_pb2.DescribeRequest(), metadata=sent(version))
        if is_taken:
            assert (await call).device == "cpu"
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert_names_both(caught.value.details() or "", version, "a scheduler")


@pytest.mark.usefixtures("second_version")
@pytest.mark.parametrize("version", FAR)
async def test_an_announcement_from_too_far_is_refused(version: int) -> None:
    request = scheduler_pb2.AnnounceWorkerRequest(rank=0, address="127.0.0.1:9", version="9")
    async with (
        running_scheduler(wait=False, tensor_parallel_size=1) as (_, at),
        open_channel(at) as channel,
    ):
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.AnnounceWorker(request, metadata=sent(version))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert_names_both(caught.value.details() or "", version, "a worker")


async def test_ranks_of_two_versions_wait_for_each_other() -> None:
    async with FakeWorker(version="1.0") as first, FakeWorker(version="1.1") as second:
        addresses = (first.address, second.address)
        async with running_scheduler(*addresses, wait=False) as (scheduler, _):
            workers = scheduler._driver.workers
            async with asyncio.timeout(WAIT_S):
                while not workers.why_unformed:
                    await asyncio.sleep(0)
            assert "1.0 and 1.1: all ranks must run the same version" in workers.why_unformed
            assert not first.load_requests
            first.version = "1.1"
            await asyncio.wait_for(scheduler.wait_until_serving(), WAIT_S)


@pytest.mark.usefixtures("second_version")
async def test_a_router_refuses_clients_of_the_sdk_alone(tmp_path: Path) -> None:
    request = inference_pb2.TokenizeRequest(text=PROMPT)
    async with running_router(tmp_path) as setup, open_channel(setup.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for version in (UNVERSIONED, *NEAR):  # without one it is a program made from the protos
            assert (await stub.Tokenize(request, metadata=sent(version))).token_ids
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(request, metadata=sent(4))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert_names_both(caught.value.details() or "", 4, "a client")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(request, metadata=((PROTOCOL_VERSION, "new"),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_passes_over_a_router_that_it_does_not_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=5)
    async with running_router(tmp_path) as first, running_router(tmp_path) as second:
        seen: list[str] = []

        def check(version: int, peer: str) -> None:
            seen.append(peer)
            if len(seen) == 1:
                raise ProtocolDiffersError("protocol_version: must be in [1, 3], got 4")

        monkeypatch.setattr("quire.sdk.resume.check_protocol", check)
        async with AsyncClient([first.address, second.address]) as client:
            assert (await client.generate(PROMPT, params)).token_ids == echoed(5)
        assert len(seen) == 2
        seen.clear()
        async with AsyncClient(first.address) as client:
            with pytest.raises(ProtocolDiffersError, match="got 4"):
                await client.generate(PROMPT, params)


@pytest.mark.parametrize(("before", "after"), [(0, 4), (4, 0)])
async def test_workers_that_know_of_vectors_and_others_take_turns(
    tmp_path: Path, before: int, after: int
) -> None:
    """In an upgrade, and in one that is taken back."""
    models = [
        replace(FAKE_MODEL, embedding_size=size, is_matryoshka=bool(size))
        for size in (before, after)
    ]
    prompt, refused = [5, 6, 7], "model: must be one that gives vectors"
    async with FakeWorker(model=models[0]) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address) as (_, at),
            router_for(tmp_path, (at,)) as (router, client, _),
        ):
            await asyncio.wait_for(router.wait_until_serving(), WAIT_S)
            if before:
                assert len((await client.embed(prompt)).vectors) == 1
                worker.steps_allowed.clear()
                lost = asyncio.create_task(client.embed([prompt, prompt], timeout=WAIT_S))
                await until_waiting(router, 2)
            else:
                with pytest.raises(InvalidRequestError, match=refused):
                    await client.embed(prompt)
                worker.steps_allowed.clear()
            waiting = asyncio.create_task(client.generate(prompt, SHORT))
            await until_waiting(router, 3 if before else 1)
            await worker.kill()
            async with FakeWorker(model=models[1], port=port):
                assert list((await waiting).token_ids) == reference(prompt, SHORT)
                if after:
                    assert len((await client.embed(prompt)).vectors) == 1
                else:
                    with pytest.raises(InvalidRequestError, match=refused):
                        await client.embed(prompt)
                    # No other cell gives them: it waits for one, and no token is made of it.
                    assert not lost.done()
                    lost.cancel()


async def test_vectors_wait_for_the_one_cell_that_gives_them(tmp_path: Path) -> None:
    older = FakeScheduler(model=replace(MODEL, embedding_size=0, max_model_len=512))
    port = free_port()
    async with (
        running_fake(older) as first,
        router_for(tmp_path, (first, f"127.0.0.1:{port}")) as (router, client, _),
    ):
        async with running_fake(FakeScheduler(), port):
            await connected(client, 2)
            assert len((await client.embed(PROMPT)).vectors) == 1
        while sum(cell.connected for cell in router._cells.statuses()) > 1:
            await asyncio.sleep(0)
        finding = asyncio.create_task(router._cells.find_model("fake", None, True))
        await asyncio.sleep(0)
        assert not finding.done()
        async with running_fake(FakeScheduler(), port):
            assert (await finding).embedding_size
            assert len((await client.embed(PROMPT)).vectors) == 1


async def test_a_cell_has_the_text_id_of_its_present_workers(tmp_path: Path) -> None:
    models = [replace(FAKE_MODEL, text_id=each) for each in ("before", "after")]
    async with FakeWorker(model=models[0]) as worker:
        port = int(worker.address.rpartition(":")[2])
        async with (
            running_scheduler(worker.address) as (_, at),
            router_for(tmp_path, (at,)) as (router, client, _),
        ):
            await asyncio.wait_for(router.wait_until_serving(), WAIT_S)
            worker.steps_allowed.clear()
            waiting = asyncio.create_task(client.generate([5, 6, 7], SHORT))
            await until_waiting(router, 1)
            await worker.kill()
            async with FakeWorker(model=models[1], port=port):
                assert list((await waiting).token_ids) == reference([5, 6, 7], SHORT)
                [cell] = await connected(client, 1)
                assert cell.model is not None and cell.model.text_id == "after"


async def until_waiting(router: Router, number: int) -> None:
    while sum(stream.has_begun for stream in router._cells.requests.values()) < number:
        await asyncio.sleep(0)


async def test_a_scheduler_of_the_previous_release_serves_a_router_of_this(tmp_path: Path) -> None:
    service = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"]
    speaks, fake = SpeaksPreviousRelease(service), FakeScheduler()
    async with (
        running_fake(fake, interceptors=[speaks]) as at,
        router_for(tmp_path, (at,)) as (router, client, _),
    ):
        await asyncio.wait_for(router.wait_until_serving(), WAIT_S)
        answer = await client.generate(PROMPT, SamplingParams(max_tokens=5))
        assert answer.token_ids == echoed(5)
    assert "Session" in speaks.dropped, "the welcome has a field that was not known then"


async def test_a_worker_of_the_previous_release_serves_a_scheduler_of_this() -> None:
    speaks = SpeaksPreviousRelease(worker_pb2.DESCRIPTOR.services_by_name["WorkerService"])
    async with (
        FakeWorker(interceptors=[speaks]) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5, 6, 7], SHORT)
        await router.finish(1)
        assert router.tokens[1] == reference([5, 6, 7], SHORT)
    assert "Describe" in speaks.dropped, "the description has a field that was not known then"
