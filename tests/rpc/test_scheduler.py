"""Tokens and ends of requests at a scheduler, over real gRPC with fake workers."""

import asyncio

import grpc
import pytest

from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs
from quire.v1 import common_pb2, scheduler_pb2
from quire.wire.common import sampling_params_to_proto
from scheduler_svc.driver import MAX_UNSENT_EVENTS
from tests.fakes.fake_worker import FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.scheduler_requests import LONG, SHORT, make_requests, reference

# ---------------------------------------------------------------- tokens


async def test_32_requests_in_a_tiny_cache_get_the_tokens_of_running_alone() -> None:
    requests = make_requests(32)
    async with (
        FakeWorker(num_blocks=24) as worker,
        running_scheduler(worker.address, max_num_seqs=8, max_num_batched_tokens=32) as (_, at),
        open_session(at) as router,
    ):
        for number, request in requests.items():
            await router.submit(number, *request)
        await router.finish(*requests)
        for number, request in requests.items():
            assert router.tokens[number] == reference(*request, max_model_len=96)
        await router.until(lambda r: bool(r.states) and r.states[-1].tokens_total > 0)
        await router.until(lambda r: r.states[-1].num_running == 0)
        state = router.states[-1]
        assert state.preemptions_total > 0
        assert state.num_free_blocks == state.num_blocks == 24
        assert state.tokens_total == sum(map(len, router.tokens.values()))
        assert state.steps_total == worker.num_steps
        assert state.step_bytes_total > 0
        assert state.schedule_us_total > 0
        assert state.wire_us_total > 0
        assert state.model_us_total == 20 * state.steps_total
        assert state.sample_us_total == 10 * state.steps_total


async def test_two_ranks_run_every_step() -> None:
    requests = make_requests(6)
    async with (
        FakeWorker(num_blocks=40) as first,
        FakeWorker(num_blocks=30) as second,
        running_scheduler(first.address, second.address) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert router.welcome.cell_state.num_blocks == 30, "the minimum over ranks"
        for number, request in requests.items():
            await router.submit(number, *request)
        await router.finish(*requests)
        assert {n: router.tokens[n] for n in requests} == {
            n: reference(*request, max_model_len=120) for n, request in requests.items()
        }
        assert first.num_steps == second.num_steps > 0
        loads = [first.load_requests[0], second.load_requests[0]]
        assert [load.tensor_parallel_rank for load in loads] == [0, 1]
        assert {load.tensor_parallel_size for load in loads} == {2}
        assert {load.distributed_init_address for load in loads} == {first.rendezvous}
        assert len({load.distributed_secret for load in loads}) == 1, "ranks know each other by it"
        assert len(loads[0].distributed_secret) == 32


async def test_sessions_get_one_message_a_step_with_their_own_tokens_only() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as one,
        open_session(at) as two,
    ):
        # The same numbers in both sessions are different requests.
        worker.steps_allowed.clear()
        await one.submit(1, [5, 6], SHORT)
        await one.submit(2, [7], SHORT)
        await two.submit(1, [8, 9], SHORT)
        await one.until(lambda r: len(r.seeds) == 2)
        await two.until(lambda r: len(r.seeds) == 1)
        worker.steps_allowed.set()
        await one.finish(1, 2)
        await two.finish(1)
        assert one.tokens == {1: reference([5, 6], SHORT), 2: reference([7], SHORT)}
        assert two.tokens == {1: reference([8, 9], SHORT)}
        assert any(len(step.request_numbers) == 2 for step in one.steps)
        assert len(one.steps) <= worker.num_steps


async def test_a_request_without_a_seed_is_given_one_that_reproduces_it() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        unseeded = SamplingParams(max_tokens=5, ignore_eos=True)
        await router.submit(1, [5], unseeded)
        await router.submit(2, [5], unseeded)
        await router.finish(1, 2)
        assert router.seeds[1] != router.seeds[2]
        seeded = SamplingParams(max_tokens=5, ignore_eos=True, seed=router.seeds[1])
        await router.submit(3, [5], seeded)
        await router.finish(3)
        assert router.seeds[3] == router.seeds[1]
        assert router.tokens[3] == router.tokens[1] == reference([5], seeded)


async def test_a_resumed_request_continues_and_repeats_nothing() -> None:
    whole = reference([5, 6, 7], LONG)
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5, 6, 7], LONG, whole[:50])
        await router.submit(2, [5, 6, 7], LONG, whole)
        await router.finish(1, 2)
        assert router.tokens == {1: whole[50:]}
        assert router.finished == dict.fromkeys((1, 2), common_pb2.FINISH_REASON_LENGTH)


# ---------------------------------------------------------------- ends


async def test_cancel_frees_blocks_in_the_next_step() -> None:
    async with (
        FakeWorker(num_blocks=60) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5] * 30, LONG)
        await router.submit(2, [6], LONG)
        await router.until(lambda r: len(r.tokens.get(1, [])) > 3 and 2 in r.tokens)
        worker.steps_allowed.clear()
        await router.cancel(1, 99)
        await router.until(lambda r: r.finished.get(1) == common_pb2.FINISH_REASON_ABORT)
        # At most the two steps that were in flight and the one that brings the news.
        steps = worker.num_steps
        worker.steps_allowed.set()
        await worker.wait_steps(steps + 3)
        assert worker.sequences == 1
        received = len(router.tokens[1])
        await router.finish(2)
        assert router.tokens[2] == reference([6], LONG)
        assert len(router.tokens[1]) == received


async def test_a_message_that_cancels_thousands_does_not_end_the_session() -> None:
    numbers = range(1, MAX_UNSENT_EVENTS + 77)
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        worker.steps_allowed.clear()
        for number in numbers:
            await router.submit(number, [5], LONG)
        await router.until(lambda r: len(r.seeds) == len(numbers))
        await router.cancel(*numbers)
        await router.until(lambda r: r.ended or len(r.finished) == len(numbers))
        assert router.finished == dict.fromkeys(numbers, common_pb2.FINISH_REASON_ABORT)
        worker.steps_allowed.set()
        await router.submit(0, [5], SHORT)
        await router.finish(0)
        assert router.tokens[0] == reference([5], SHORT)


async def test_a_sequence_cancelled_right_after_the_last_of_the_others_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The router, which has ended one by a stop string, must still receive the other's end."""
    params = SamplingParams(n=2, seed=1, max_tokens=8, ignore_eos=True)
    outputs = [
        scheduler_pb2.SequenceOutput(sequence_index=index, token_ids=[5] * count)
        for index, count in enumerate((1, 6))
    ]
    submit = scheduler_pb2.Submission(
        request_number=1,
        prompt_token_ids=[5, 6],
        outputs=outputs,
        sampling_params=sampling_params_to_proto(params),
    )
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        open_session(at) as router,
    ):
        driver = scheduler._driver
        send = driver.workers.send

        async def cancel_and_send(outputs: SchedulerOutputs) -> None:
            assert driver.cell is not None
            if driver.cell._unsent.finished:
                (session,) = driver._sessions
                driver.cell.cancel_sequence(session, 1, 0)
            await send(outputs)

        monkeypatch.setattr(driver.workers, "send", cancel_and_send)
        await router.send(scheduler_pb2.SessionRequest(submission=submit))
        await router.finish(1)
        assert router.finished == {1: common_pb2.FINISH_REASON_LENGTH}
        assert len(router.tokens[1]) == 3 + 2
        await router.until(lambda r: bool(r.states) and r.states[-1].num_free_blocks == 64)
        assert driver.cell is not None and not driver.cell.num_unfinished


async def test_the_end_of_a_session_aborts_its_requests() -> None:
    async with (
        FakeWorker(num_blocks=60) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as staying,
    ):
        async with open_session(at) as leaving:
            for number in range(4):
                await leaving.submit(number, [number], LONG)
            await leaving.until(lambda r: len(r.tokens) == 4)
            # Nothing can finish any more: only an abort frees blocks.
            worker.steps_allowed.clear()
            await staying.until(lambda r: bool(r.states) and r.states[-1].num_running == 4)
        await staying.until(lambda r: r.states[-1].num_running == 0)
        assert staying.states[-1].num_free_blocks == 60
        worker.steps_allowed.set()
        await staying.submit(1, [5], SHORT)
        await staying.finish(1)
        assert worker.sequences == 1


async def test_a_router_that_closes_its_side_ends_the_session_cleanly() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.call.done_writing()
        assert await asyncio.wait_for(router.call.code(), 10) is grpc.StatusCode.OK
