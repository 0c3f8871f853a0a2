"""The scheduler service over real gRPC, with fake workers."""

import asyncio
import random

import grpc
import pytest

from quire.contract.errors import ConfigError, ModelLoadError, StaleEpochError
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs
from quire.rpc import open_channel
from quire.v1 import common_pb2, scheduler_pb2, worker_pb2, worker_pb2_grpc
from quire.wire.common import sampling_params_to_proto
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.workers.worker_set import WorkerSet
from tests.fakes.fake_model import fake_generate
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import open_session, running_scheduler


def reference(prompt: list[int], params: SamplingParams, max_model_len: int = 256) -> list[int]:
    return fake_generate(
        prompt,
        params,
        vocab_size=FAKE_MODEL.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=FAKE_MODEL.eos_token_ids,
    )


def make_requests(count: int, max_tokens: int = 20) -> dict[int, tuple[list[int], SamplingParams]]:
    rng = random.Random(count)
    return {
        number: (
            [rng.randrange(FAKE_MODEL.vocab_size) for _ in range(rng.randint(1, 24))],
            SamplingParams(temperature=number % 2, seed=rng.getrandbits(64), max_tokens=max_tokens),
        )
        for number in range(1, count + 1)
    }


LONG = SamplingParams(seed=1, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(seed=1, max_tokens=3, ignore_eos=True)


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


async def test_a_sequence_cancelled_right_after_the_last_of_the_others_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The router, which has ended one by a stop string, must still hear of the other's end."""
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


# ---------------------------------------------------------------- refusals


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
        assert refusal.reason == scheduler_pb2.REFUSAL_REASON_INVALID
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


async def test_odd_messages_hurt_nobody() -> None:
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


# ---------------------------------------------------------------- starting


async def test_welcome_describes_the_cell() -> None:
    async with (
        FakeWorker(num_blocks=20) as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert router.welcome.epoch == worker.epoch == router.welcome.cell_state.epoch
        assert router.welcome.model.name == "fake"
        assert router.welcome.model.max_model_len == 80, "clamped to 20 blocks of 4"
        assert router.welcome.cell_state.num_free_blocks == 20
        assert router.welcome.cell_state.block_size == 4


async def test_state_is_reported_while_idle() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.until(lambda r: len(r.states) >= 2)
        assert router.states[-1].steps_total == 0


@pytest.mark.parametrize("max_model_len", [None, 40])
async def test_the_cache_can_be_set_and_a_given_length_is_kept(max_model_len: int | None) -> None:
    settings = {"num_gpu_blocks_override": 10, "max_model_len": max_model_len}
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address, **settings) as (_, at),
        open_session(at) as router,
    ):
        assert router.welcome is not None
        assert router.welcome.cell_state.num_blocks == 10
        assert router.welcome.model.max_model_len == 40


async def failed_start(worker: FakeWorker, **settings: object) -> Exception:
    async with running_scheduler(worker.address, wait=False, **settings) as (scheduler, _):
        with pytest.raises((ConfigError, ModelLoadError, StaleEpochError)) as caught:
            await asyncio.wait_for(scheduler.run(), 20)
    return caught.value


async def test_a_length_that_does_not_fit_the_cache_is_a_config_error() -> None:
    async with FakeWorker(num_blocks=10) as worker:
        error = await failed_start(worker, max_model_len=41)
    assert isinstance(error, ConfigError)
    assert "max_model_len" in error.message
    assert "40" in error.message
    assert "41" in error.message


async def test_a_cache_without_blocks_is_a_config_error() -> None:
    async with FakeWorker(num_blocks=0) as worker:
        error = await failed_start(worker, kv_cache_gib=10 / 2**30)
    assert isinstance(error, ConfigError)
    assert "64 bytes, got 10" in error.message


async def test_a_worker_of_another_version_is_refused() -> None:
    async with FakeWorker(version="0.0.9") as worker:
        error = await failed_start(worker)
    assert isinstance(error, ConfigError)
    assert "0.0.9" in error.message
    assert worker.load_requests == []


async def test_an_unusable_model_ends_the_start_with_the_workers_words() -> None:
    async with FakeWorker(load_error=ModelLoadError("model.safetensors is missing")) as worker:
        error = await failed_start(worker)
    assert isinstance(error, ModelLoadError)
    assert error.message == "model.safetensors is missing"


async def test_one_rank_that_cannot_load_fails_the_start_of_all() -> None:
    async with (
        FakeWorker() as good,
        FakeWorker(load_error=ModelLoadError("wrong shape")) as bad,
    ):
        addresses = (good.address, bad.address)
        async with running_scheduler(*addresses, wait=False) as (scheduler, _):
            with pytest.raises(ModelLoadError, match="wrong shape"):
                await asyncio.wait_for(scheduler.run(), 20)


async def test_a_worker_that_starts_late_is_waited_for() -> None:
    async with FakeWorker() as probe:
        port = int(probe.address.rpartition(":")[2])
    async with running_scheduler(f"127.0.0.1:{port}", wait=False) as (scheduler, _):
        waiting = asyncio.create_task(scheduler.wait_until_serving())
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        async with FakeWorker(port=port):
            await asyncio.wait_for(waiting, 20)


# ---------------------------------------------------------------- epochs


async def test_the_epoch_is_above_the_clock_and_what_workers_have_seen() -> None:
    config = {"model": "/m", "served_model_name": "m", "block_size": 4}
    async with FakeWorker() as worker:
        workers = WorkerSet(SchedulerConfig(workers=(worker.address,), **config), lambda: None)  # type: ignore[arg-type]
        try:
            first = (await workers.form("test")).epoch
            second = (await workers.form("test")).epoch
            worker.epoch = far_future = 2**50
            third = (await workers.form("test")).epoch
        finally:
            await workers.close()
    assert 100_000_000_000 < first < second < far_future < third


async def test_a_superseded_scheduler_stops_and_its_orders_are_refused() -> None:
    async with (
        FakeWorker() as worker,
        running_scheduler(worker.address) as (scheduler, at),
        open_session(at) as router,
    ):
        await router.submit(1, [5], LONG)
        await router.until(lambda r: 1 in r.tokens)
        worker.steps_allowed.clear()
        async with open_channel(worker.address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            await stub.Reset(worker_pb2.ResetRequest(epoch=worker.epoch + 1))
            steps = worker.num_steps
            worker.steps_allowed.set()
            with pytest.raises(StaleEpochError):
                await asyncio.wait_for(scheduler.run(), 20)
            assert worker.num_steps == steps
