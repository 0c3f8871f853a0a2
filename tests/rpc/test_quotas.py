"""Quotas of API keys, from the file of keys through a router to schedulers, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from quire import AsyncClient, SamplingParams
from quire.contract.errors import OverloadedError, QuotaExceededError
from quire.contract.outputs import Finished, Started
from quire.contract.quotas import Quotas
from quire.rpc import open_channel
from quire.security.api_key_file import ApiKey, digest, editing
from quire.security.api_keys import utc_now
from quire.v1 import common_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2
from router.requests.counters import RequestOutcome
from router.text.tokenize import Tokenizer
from tests.fakes.fake_scheduler import FakeScheduler, echo
from tests.fakes.fake_scheduler import running_scheduler as running_fake
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.http_setup import http_router
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.router_setup import read_all, router_for
from tests.rpc.test_cells import connected
from tests.rpc.test_scheduler_metrics import admin_of, metrics

EXCEEDED = scheduler_pb2.REFUSAL_REASON_QUOTA_EXCEEDED
KEYS = {
    "few": Quotas(max_requests_per_minute=2),
    "brief": Quotas(max_tokens_per_minute=20),
    "single": Quotas(max_concurrent=1),
    "free": Quotas(),
}


def write_keys(directory: Path) -> Path:
    """Return a file with KEYS."""
    file = directory / "keys.jsonl"
    with editing(file) as keys:
        keys += [
            ApiKey(name, digest(name), utc_now(), quotas=quotas) for name, quotas in KEYS.items()
        ]
    return file


@asynccontextmanager
async def keyed_router(
    directory: Path, *schedulers: str
) -> AsyncIterator[tuple[str, dict[str, AsyncClient]]]:
    """A router with KEYS, its address, and a client for each of them."""
    async with AsyncExitStack() as stack:
        _, _, address = await stack.enter_async_context(
            router_for(directory, schedulers, api_keys=write_keys(directory))
        )
        clients = {
            name: await stack.enter_async_context(AsyncClient(address, api_key=name))
            for name in KEYS
        }
        await connected(clients["free"], len(schedulers))
        yield address, clients


def params(max_tokens: int = 2) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1)


async def test_each_quota_is_enforced_by_key_and_counted(tmp_path: Path) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        keyed_router(tmp_path, at) as (_, clients),
    ):
        admin = await admin_of(scheduler)
        few, brief, single, free = clients.values()
        for _ in range(2):
            await few.generate([5], params())
        with pytest.raises(QuotaExceededError, match="must be at most 2, got 3") as refused:
            await few.generate([5], params())
        assert 0 < refused.value.retry_after_ms <= 30_000

        # One long answer is had in full, and owed.
        assert len((await brief.generate([5], params(100))).token_ids) == 100
        with pytest.raises(QuotaExceededError, match=r"^tokens per minute: must be") as refused:
            await brief.generate([5], params())
        assert refused.value.retry_after_ms > 120_000

        worker.steps_allowed.clear()
        running = single.stream([5], params())
        assert isinstance(await anext(running), Started)
        with pytest.raises(QuotaExceededError, match="concurrent: must be at most 1, got 2"):
            await single.generate([5], params())
        waiting = asyncio.create_task(free.generate([5], params()))
        worker.steps_allowed.set()
        assert isinstance((await read_all(running))[-1], Finished)
        assert len((await waiting).token_ids) == 2
        assert (await single.generate([5], params())).token_ids

        page = await metrics(admin)
        name = "quire_scheduler_quota_refusals_total"
        assert page(name, key="few", quota="requests_per_minute") == 1
        assert page(name, key="brief", quota="tokens_per_minute") == 1
        assert page(name, key="single", quota="concurrent") == 1
        assert page("quire_scheduler_requests_refused_total", reason="QUOTA_EXCEEDED") == 3


async def test_a_client_of_the_protos_gets_reason_and_time(tmp_path: Path) -> None:
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=[5]),
        sampling_params=common_pb2.SamplingParams(max_tokens=2),
    )
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        keyed_router(tmp_path, at) as (address, _),
        open_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for _ in range(3):
            call = stub.Generate(request, metadata=(("authorization", "Bearer few"),))
            status = await rpc_status_of(call)
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for packed in status.details:
            for detail in (info, retry):
                packed.Unpack(detail)
        assert info.reason == "QUOTA_EXCEEDED"
        assert 0 < retry.retry_delay.ToMilliseconds() <= 30_000


async def rpc_status_of(call: grpc.aio.UnaryStreamCall):
    """Read a call to its end and return its status."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return rpc_status.from_call(error)
    return None


async def test_cells_share_a_quota_and_one_that_has_used_it_up_sends_on(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(2):
            worker = await stack.enter_async_context(FakeWorker())
            _, address = await stack.enter_async_context(running_scheduler(worker.address))
            addresses.append(address)
        _, clients = await stack.enter_async_context(keyed_router(tmp_path, *addresses))
        for _ in range(2):
            await clients["few"].generate([5], params())
        with pytest.raises(QuotaExceededError, match=r"at most 2 \(1 at each of 2 cells\), got 2"):
            await clients["few"].generate([5], params())


async def test_quotas_travel_with_the_number_of_cells_that_take_requests(tmp_path: Path) -> None:
    fakes = [FakeScheduler() for _ in range(3)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running_fake(fake)) for fake in fakes]
        _, clients = await stack.enter_async_context(keyed_router(tmp_path, *addresses))
        await clients["brief"].generate([5], params())
        await clients["free"].generate([5], params())
    submitted = {each.tenant[0]: each for fake in fakes for each in fake.submitted}
    assert submitted["brief"].num_cells == 3
    assert submitted["brief"].quotas == scheduler_pb2.Quotas(max_tokens_per_minute=20)
    assert submitted["free"].quotas is None


def submission(number: int, **fields: object) -> scheduler_pb2.SessionRequest:
    return scheduler_pb2.SessionRequest(
        submission=scheduler_pb2.Submission(
            request_number=number,
            prompt_token_ids=[5],
            sampling_params=common_pb2.SamplingParams(seed=1, max_tokens=5, ignore_eos=True),
            tenant="alice",
            quotas=scheduler_pb2.Quotas(max_requests_per_minute=1, max_tokens_per_minute=3),
            **fields,
        )
    )


async def test_what_goes_on_is_taken_where_what_begins_is_refused() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.send(submission(1))
        await router.finish(1)
        await router.send(submission(2))
        await router.send(submission(3, was_queued=True))
        await router.send(submission(4, was_queued=True, outputs=[{"token_ids": [7]}]))
        await router.finish(3, 4)
        assert set(router.refused) == {2}
        assert router.refused[2].reason == EXCEEDED
        assert router.refused[2].message == "requests per minute: must be at most 1, got 2"
        assert 0 < router.refused[2].retry_after_ms <= 60_000


async def test_a_resumed_request_waits_for_its_quota_and_does_not_fail(tmp_path: Path) -> None:
    fake = FakeScheduler()
    async with running_fake(fake) as at, keyed_router(tmp_path, at) as (_, clients):
        fake.refuse_next(
            scheduler_pb2.Refused(reason=EXCEEDED, message="concurrent: ...", retry_after_ms=1)
        )
        with pytest.raises(OverloadedError):
            await clients["single"].generate([5], params())
        fake.hold()
        running = asyncio.create_task(clients["single"].generate([5], params(3)))
        await fake.until(lambda: fake.num_running() == 1)
        fake.refuse_next(
            scheduler_pb2.Refused(reason=EXCEEDED, message="concurrent: ...", retry_after_ms=1)
        )
        fake.drop_sessions()
        await fake.until(lambda: fake.num_refused == 2)
        await fake.release()
        assert len((await running).token_ids) == 3


async def test_a_call_larger_than_a_quota_comes_to_its_end(tmp_path: Path) -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        keyed_router(tmp_path, at) as (_, clients),
    ):
        prompts = [[5, 6 + place] for place in range(6)]
        found = await clients["single"].embed(prompts)
        assert scheduler._driver.cell is not None
        assert not scheduler._driver.cell.quotas.num_refused, "no more at once than it may have"
        assert found == replace(await clients["free"].embed(prompts), request_id=found.request_id)
        with pytest.raises(QuotaExceededError, match="per minute: must be at most 2, got 3"):
            await clients["few"].embed(prompts, timeout=5.0)


async def test_prompts_of_a_completion_wait_for_room_while_others_run(tmp_path: Path) -> None:
    fake = FakeScheduler()
    async with http_router(tmp_path, fake) as setup:
        body = {"prompt": [[5, 6], [7, 8], [9, 5]], "max_tokens": 2}
        whole = (await setup.post("/v1/completions", body)).json()["choices"]
        refused = scheduler_pb2.Refused(reason=EXCEEDED, message="concurrent", retry_after_ms=1)
        for _ in range(2):
            fake.refuse_next(refused)
        assert (await setup.post("/v1/completions", body)).json()["choices"] == whole
        fake.refuse_next(refused)
        events = await setup.events("/v1/completions", body)
        texts = [""] * 3
        for event in events[:-1]:
            texts[event.choice["index"]] += event.choice["text"]
        assert texts == [each["text"] for each in whole]
        for _ in range(3):
            fake.refuse_next(refused)
        assert (await setup.post("/v1/completions", body)).status_code == 429


async def test_prompts_of_a_completion_are_tokenized_once_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    num_running: set[int] = set()
    encode = Tokenizer.encode

    async def encode_and_record(
        self: Tokenizer, text: str, add_special_tokens: bool = True
    ) -> Sequence[int]:
        texts.append(text)
        return await encode(self, text, add_special_tokens)

    def next_token(prompt: Sequence[int], seed: int, position: int) -> int:
        num_running.add(fake.num_running())
        return echo(prompt, seed, position)

    monkeypatch.setattr(Tokenizer, "encode", encode_and_record)
    fake = FakeScheduler(next_token)
    prompts = [f"text {place}" for place in range(4)]
    body = {"prompt": prompts, "max_tokens": 2, "echo": True}
    async with http_router(tmp_path, fake, api_keys=write_keys(tmp_path)) as setup:
        single = await setup.post("/v1/completions", body, authorization="Bearer single")
        assert num_running == {1}, "no more at once than it may have"
        assert sorted(texts) == prompts
        texts.clear()
        for _ in range(3):
            fake.refuse_next(
                scheduler_pb2.Refused(reason=EXCEEDED, message="concurrent", retry_after_ms=1)
            )
        free = await setup.post("/v1/completions", body, authorization="Bearer free")
        assert fake.num_refused == 3
        assert free.json()["choices"] == single.json()["choices"]
        assert sorted(texts) == prompts
        counters = setup.router.inference._counters
        assert counters.key_requests == {"single": 4, "free": 4}
        assert counters.requests == {("fake", RequestOutcome.FINISHED): 8}
        assert not counters.errors
