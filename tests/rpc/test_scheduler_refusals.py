"""Requests that a scheduler refuses, over real gRPC with fake workers."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import common_pb2, scheduler_pb2
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG, SHORT, reference

INVALID = scheduler_pb2.REFUSAL_REASON_INVALID
TOO_LARGE = scheduler_pb2.REFUSAL_REASON_TOO_LARGE


async def test_a_full_queue_refuses_with_a_time_to_retry() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_waiting=3, max_num_seqs=1) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, [5], SHORT)
        # The step is under way once the first request no longer waits.
        await router.until(lambda r: bool(r.states) and r.states[-1].num_running == 1)
        for number in range(2, 7):
            await router.submit(number, [5], SHORT)
        await router.until(lambda r: len(r.seeds) + len(r.refused) == 6)
        assert sorted(router.refused) == [5, 6]
        refusal = router.refused[5]
        assert refusal.reason == scheduler_pb2.REFUSAL_REASON_QUEUE_FULL
        assert refusal.retry_after_ms > 0
        assert "3" in refusal.message
        worker.steps_allowed.set()
        await router.finish(1, 2, 3, 4)


async def test_text_of_a_model_that_gives_vectors_only_is_refused() -> None:
    """Also where a router of an earlier release asks for it."""
    model = replace(FAKE_MODEL, vectors_only=True)
    async with (
        FakeWorker(model=model) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5], SHORT)
        await router.until(lambda r: 1 in r.refused)
        assert (router.refused[1].reason, router.refused[1].field) == (INVALID, "model")


@pytest.mark.parametrize(
    ("request_fields", "field", "parts"),
    [
        ({"prompt_token_ids": []}, "prompt", ["1 token", "0"]),
        ({"prompt_token_ids": [1] * 256}, "prompt", ["256"]),
        ({"prompt_token_ids": [1] * 100_000}, "prompt", ["256", "100000"]),
        ({"prompt_token_ids": [5, 997]}, "prompt", ["996", "997"]),
        ({"prompt_token_ids": [5, 2**32 - 1]}, "prompt", ["996", "4294967295"]),
        (
            {"prompt_token_ids": [5], "outputs": [{"token_ids": [999]}]},
            "output_token_ids",
            ["996", "999"],
        ),
        (
            {"prompt_token_ids": [5] * 200, "outputs": [{"token_ids": [9] * 57}]},
            "output_token_ids",
            ["256", "257"],
        ),
    ],
)
async def test_invalid_submits_are_refused_with_field_limit_and_value(
    request_fields: dict[str, list[int]], field: str, parts: list[str]
) -> None:
    params = common_pb2.SamplingParams(seed=1, max_tokens=3, ignore_eos=True)
    bad = scheduler_pb2.Submission(request_number=7, sampling_params=params, **request_fields)
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5], LONG)
        await router.send(scheduler_pb2.SessionRequest(submission=bad))
        await router.until(lambda r: 7 in r.refused)
        refusal = router.refused[7]
        is_too_large = len(bad.prompt_token_ids) >= FAKE_MODEL.max_model_len
        assert refusal.reason == (TOO_LARGE if is_too_large else INVALID)
        assert refusal.field == field
        assert all(part in refusal.message for part in parts), refusal.message
        await router.finish(1)
        assert router.tokens[1] == reference([5], LONG)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (common_pb2.SamplingParams(temperature=float("nan")), "temperature"),
        (common_pb2.SamplingParams(top_p=0.0), "top_p"),
        (common_pb2.SamplingParams(max_tokens=0), "max_tokens"),
        (common_pb2.SamplingParams(max_tokens=2**32 - 1), "max_tokens"),
        (common_pb2.SamplingParams(stop_token_ids=range(1000)), "stop_token_ids"),
    ],
)
async def test_sampling_params_are_not_trusted(
    params: common_pb2.SamplingParams, field: str
) -> None:
    bad = scheduler_pb2.Submission(
        request_number=2**64 - 1, prompt_token_ids=[5], sampling_params=params
    )
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.send(scheduler_pb2.SessionRequest(submission=bad))
        await router.until(lambda r: 2**64 - 1 in r.refused)
        assert router.refused[2**64 - 1].field == field


async def test_odd_messages_harm_no_request() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.send(scheduler_pb2.SessionRequest())
        await router.cancel(0, 2**64 - 1, 0)
        unseeded = SamplingParams(max_tokens=9)
        await router.submit(3, [5], unseeded, [6, 7])
        await router.until(lambda r: 3 in r.refused)
        assert router.refused[3].field == "seed"
        worker.steps_allowed.clear()
        await router.submit(1, [5], LONG)
        await router.submit(1, [6], LONG)
        await router.until(lambda r: 1 in r.refused)
        assert router.refused[1].field == "request_number"
        worker.steps_allowed.set()
        await router.finish(1)
        assert router.tokens[1] == reference([5], LONG), "the first one goes on"


async def test_the_tokens_that_wait_are_bounded_too() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_waiting_tokens=10, max_num_seqs=1) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        await router.submit(1, [5], SHORT)
        await router.until(lambda r: bool(r.states) and r.states[-1].num_running == 1)
        await router.submit(2, [5] * 100, SHORT)  # alone, it is never too much
        await router.submit(3, [5], SHORT)
        await router.until(lambda r: 3 in r.refused)
        assert router.refused[3].reason == scheduler_pb2.REFUSAL_REASON_QUEUE_FULL
        assert "max_waiting_tokens is 10, 100 wait, got 1" in router.refused[3].message
        assert router.refused[3].retry_after_ms > 0
        worker.steps_allowed.set()
        await router.finish(1, 2)


def submission(number: int, deadline_ms: int) -> scheduler_pb2.SessionRequest:
    params = common_pb2.SamplingParams(seed=1, max_tokens=200, ignore_eos=True)
    return scheduler_pb2.SessionRequest(
        submission=scheduler_pb2.Submission(
            request_number=number,
            prompt_token_ids=[5],
            sampling_params=params,
            deadline_ms=deadline_ms,
        )
    )


async def test_an_expired_request_costs_no_further_step() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, max_steps_in_flight=1) as (_, at),
        open_session(at) as router,
    ):
        await router.send(submission(1, 0))
        await router.until(lambda r: 1 in r.refused)
        worker.steps_allowed.clear()
        # Long enough for a busy machine to send its first step before.
        await router.send(submission(2, 1000))
        await router.submit(3, [6], LONG)
        await router.until(lambda r: bool(r.states) and r.states[-1].num_running == 1)
        # By the scheduler's clock, which is this one, its time is over before the step is.
        deadline = asyncio.get_running_loop().time() + 1.0
        await router.until(lambda _: asyncio.get_running_loop().time() > deadline)
        worker.steps_allowed.set()
        await router.finish(3)
        expired = scheduler_pb2.REFUSAL_REASON_DEADLINE_EXCEEDED
        assert {router.refused[1].reason, router.refused[2].reason} == {expired}
        assert router.tokens[3] == reference([6], LONG)
        assert router.tokens[2] == reference([5], LONG)[:1], "of the step that ran already"


async def test_a_message_that_is_none_ends_its_own_session_as_invalid() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as other,
        open_channel(at) as channel,
    ):
        session = channel.stream_stream("/quire.v1.SchedulerService/Session")()
        await session.write(b"\x0a\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await session.read() is not grpc.aio.EOF:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await other.submit(1, [5], SHORT)
        await other.finish(1)
