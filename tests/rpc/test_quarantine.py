"""A request that no worker computes: it fails alone, before it costs a third one."""

import asyncio
from pathlib import Path

import grpc

from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, StepResult
from quire.v1 import scheduler_pb2, worker_pb2
from tests.fakes.fake_model import fake_generate
from tests.fakes.fake_worker import FAKE_MODEL, FakeWorker
from tests.rpc.router_double import open_session, running_scheduler
from tests.rpc.test_cells import PROMPT, digest, seen, state, two_cells

POISON = 996
PARAMS = SamplingParams(temperature=0.0, seed=1, max_tokens=40, ignore_eos=True)
POISONED_PROMPT = [5, POISON, 7]


class PoisonedWorker(FakeWorker):
    """Fails at every step with a sequence that has a certain token in its prompt.

    Attributes:
        num_failures: so far.
    """

    num_failures = 0

    async def InitCache(  # noqa: N802
        self, request: worker_pb2.InitCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.InitCacheResponse:
        before = self.fake
        response = await super().InitCache(request, context)
        assert self.fake is not None
        if self.fake is not before:
            step = self.fake.step

            def fail_or_step(outputs: SchedulerOutputs) -> StepResult:
                result = step(outputs)
                assert self.fake is not None
                held = self.fake.sequences
                if any(POISON in held[each].token_ids[:3] for each in outputs.sequence_ids):
                    self.num_failures += 1
                    raise RuntimeError("poisoned")
                return result

            self.fake.step = fail_or_step  # type: ignore[method-assign]
        return response


async def test_a_request_that_workers_fail_at_is_quarantined_and_others_go_on() -> None:
    async with (
        PoisonedWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        for number in range(1, 5):
            await router.submit(number, [number, 9, number], PARAMS)
        await router.until(lambda r: len(r.tokens) == 4)
        await router.submit(5, POISONED_PROMPT, PARAMS)
        await router.until(lambda r: 5 in r.refused)
        assert worker.num_failures == 2
        refused = router.refused[5]
        assert refused.reason == scheduler_pb2.REFUSAL_REASON_QUARANTINED
        assert refused.message.startswith("quarantined: ")
        # Its prompt, and perhaps a token that was in flight.
        assert [router.suspected.pop(5) in (3, 4), router.suspected] == [True, {}]
        await router.finish(1, 2, 3, 4)
        for number in range(1, 5):
            assert router.tokens[number] == fake_generate(
                [number, 9, number],
                PARAMS,
                vocab_size=FAKE_MODEL.vocab_size,
                max_model_len=FAKE_MODEL.max_model_len,
            )
        await router.until(lambda r: r.states[-1].num_running == 0)
        assert router.states[-1].num_free_blocks == 64


async def test_a_suspect_of_another_cell_is_quarantined_when_its_workers_fail_once() -> None:
    async with (
        PoisonedWorker() as worker,
        running_scheduler(worker.address) as (_, at),
        open_session(at) as router,
    ):
        await router.submit(1, [4, 9], PARAMS)
        await router.until(lambda r: 1 in r.tokens)
        await router.submit(2, POISONED_PROMPT, PARAMS, suspect_until=3)
        await router.until(lambda r: 2 in r.refused)
        assert worker.num_failures == 1
        assert router.suspected == {}
        await router.finish(1)


async def test_a_suspect_is_one_at_the_next_cell_until_it_has_come_further(tmp_path: Path) -> None:
    prompt = [*PROMPT, 7]
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        for fake in fakes:
            fake.hold()
        running = asyncio.create_task(client.generate(prompt, SamplingParams(max_tokens=8)))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].suspect_all(len(prompt) + 1, num_lost_alone=1)
        await fakes[0].send_state(state(11, workers_lost=True))
        await fakes[1].until(lambda: fakes[1].num_running() == 1)
        first = fakes[1].submitted[0]
        assert (first.suspect_until, first.num_lost_alone) == (len(prompt) + 1, 1)
        # One token more is not enough: the second one was in flight as well.
        await fakes[1].step()
        await fakes[0].send_state(state(12))
        await fakes[1].send_state(state(13, workers_lost=True))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        again = fakes[0].submitted[1]
        assert (again.num_resumed, again.suspect_until) == (1, len(prompt) + 1)
        await fakes[0].step()
        await fakes[1].send_state(state(14))
        await fakes[0].send_state(state(15, workers_lost=True))
        await fakes[1].until(lambda: fakes[1].num_running() == 1)
        cleared = fakes[1].submitted[1]
        assert (cleared.num_resumed, cleared.suspect_until, cleared.num_lost_alone) == (2, 0, 0)
        await fakes[1].release()
        assert (await running).token_ids == tuple(PROMPT[:8])
