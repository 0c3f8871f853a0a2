"""The scheduler goes away in mid-stream: the answer stays the same, or a clear error comes."""

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire import AsyncClient, SamplingParams
from quire.contract.errors import InvalidRequestError, UnavailableError
from quire.contract.outputs import Completion, Delta, Finished, FinishReason, Started
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.router_setup import BACKEND, read_all, router_for, running_router

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def scattered(prompt: Sequence[int], seed: int, position: int) -> int:
    """Any token, half characters and ids without text among them."""
    return 2 + zlib.crc32(repr((tuple(prompt), seed, position)).encode()) % (MODEL.vocab_size // 2)


PROMPTS = [BACKEND.encode(f"The list class, part {i}").ids for i in range(8)]
PARAMS = [
    SamplingParams(max_tokens=150, seed=i if i % 2 else None, stop=("zz", "he") if i % 3 else ())
    for i in range(8)
]


async def answers(client: AsyncClient) -> list[Completion]:
    calls = (client.generate(p, s) for p, s in zip(PROMPTS, PARAMS, strict=True))
    return [replace(c, request_id="") for c in await asyncio.gather(*calls)]


@pytest.mark.parametrize("drops", [(1,), (20,), (10, 11, 60), (149,)])
async def test_broken_sessions_change_no_answer(tmp_path, drops: tuple[int, ...]) -> None:
    async with running_router(tmp_path, FakeScheduler(scattered)) as setup:
        undisturbed = await answers(setup.client)
    fake = FakeScheduler(scattered)
    fake.drop_after_steps(*drops)
    async with running_router(tmp_path, fake) as setup:
        assert await answers(setup.client) == undisturbed
        assert fake.num_sessions >= 2
    assert any(completion.stop_str for completion in undisturbed)
    assert any(completion.finish_reason is FinishReason.LENGTH for completion in undisturbed)


async def test_resumed_request_carries_its_seed_and_tokens(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        prompt = tuple(BACKEND.encode("abcdefgh").ids)
        async with aclosing(setup.client.stream(prompt, SamplingParams(max_tokens=6))) as stream:
            started = await anext(stream)
            assert isinstance(started, Started)
            for _ in range(3):
                await setup.fake.step()
                assert isinstance(await anext(stream), Delta)
            setup.fake.drop_sessions()
            await setup.fake.until(lambda: len(setup.fake.submitted) == 2)
            resumed = setup.fake.submitted[1]
            assert resumed.num_resumed == 3
            assert resumed.params.seed == started.seed == 77
            assert resumed.number != setup.fake.submitted[0].number
            assert not resumed.params.stop
            await setup.fake.release()
            rest = await read_all(stream)
        assert sum((e.token_ids for e in rest if isinstance(e, Delta)), ()) == prompt[3:6]
        assert not any(isinstance(event, Started) for event in rest)
        assert rest[-1] == Finished(FinishReason.LENGTH, 6)


async def test_a_scheduler_that_is_replaced_gets_the_requests(tmp_path) -> None:
    """The process ends, another one listens on its port; health reports both."""
    async with AsyncExitStack() as routers:
        first, second = FakeScheduler(scattered), FakeScheduler(scattered)
        first.hold()
        async with (
            running_scheduler(second) as other,
            router_for(tmp_path, (other,)) as (_, client, _),
        ):
            expected = await answers(client)
        async with running_scheduler(first) as address:
            router, client, router_address = await routers.enter_async_context(
                router_for(tmp_path, (address,))
            )
            await router.wait_until_serving()
            tasks = asyncio.create_task(answers(client))
            await first.until(lambda: first.num_running() == 8)
            await first.step(5)
        async with open_channel(router_address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            while (await watch.read()).status != NOT_SERVING:
                pass
            late = asyncio.create_task(client.generate(PROMPTS[0], PARAMS[0]))
            port = int(address.rpartition(":")[2])
            async with running_scheduler(second, port):
                while (await watch.read()).status != SERVING:
                    pass
                watch.cancel()
                assert await tasks == expected
                assert (await late).text == expected[0].text
        # Steps that had not arrived when the first one died are sampled again.
        assert all(request.num_resumed <= 5 for request in second.submitted[8:])


async def test_another_cell_takes_over(tmp_path) -> None:
    async with AsyncExitStack() as routers:
        fakes = [FakeScheduler(scattered), FakeScheduler(scattered)]
        fakes[0].hold()
        fakes[1].hold()
        async with running_scheduler(fakes[1]) as survivor:
            async with running_scheduler(fakes[0]) as victim:
                _, client, _ = await routers.enter_async_context(
                    router_for(tmp_path, (victim, survivor))
                )
                async with aclosing(client.watch_cluster()) as watch:
                    async for cells in watch:
                        if all(cell.connected for cell in cells):
                            break
                task = asyncio.create_task(answers(client))
                # Spread over both, as each request is placed where fewest are.
                await fakes[0].until(lambda: fakes[0].num_running() == 4)
                await fakes[1].until(lambda: fakes[1].num_running() == 4)
                await fakes[0].step(3)
            await fakes[1].until(lambda: fakes[1].num_running() == 8)
            await fakes[1].release()
            moved = await task
            assert len(fakes[1].submitted) == 8
            assert all(request.num_resumed <= 3 for request in fakes[1].submitted)
            assert await answers(client) == moved


async def test_full_queue_does_not_end_what_was_admitted(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        stream = setup.client.stream([5, 6], SamplingParams(max_tokens=9))
        assert isinstance(await anext(stream), Started)
        for _ in range(2):
            setup.fake.refuse_next(
                scheduler_pb2.Refused(
                    reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL, message="full", retry_after_ms=5
                )
            )
        await setup.fake.step(2)
        setup.fake.drop_sessions()
        await setup.fake.release()
        deltas = [event for event in await read_all(stream) if isinstance(event, Delta)]
        assert sum((d.token_ids for d in deltas), ()) == (5, 6, 5, 6, 5, 6, 5, 6, 5)


async def test_invalid_after_recovery_ends_that_request(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        task = asyncio.create_task(setup.client.generate([5, 6]))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_INVALID, field="prompt", message="too long now"
            )
        )
        setup.fake.drop_sessions()
        with pytest.raises(InvalidRequestError, match="too long now"):
            await task


async def test_lost_scheduler_that_stays_away_is_unavailable(tmp_path) -> None:
    async with AsyncExitStack() as routers:
        fake = FakeScheduler()
        fake.hold()
        settings = {"recovery_timeout_s": 0.3, "connect_timeout_s": 0.2}
        async with running_scheduler(fake) as address:
            _, client, _ = await routers.enter_async_context(
                router_for(tmp_path, (address,), **settings)
            )
            async with aclosing(client.watch_cluster()) as watch:
                async for (cell,) in watch:
                    if cell.connected:
                        break
            stream = client.stream([5, 6])
            assert isinstance(await anext(stream), Started)
        with pytest.raises(UnavailableError, match=r"no scheduler is reachable \(waited 0.3 s\)"):
            await read_all(stream)
        with pytest.raises(UnavailableError, match=r"waited 0.2 s"):
            await client.generate([5, 6])
        assert await client.list_models() == []
        async with aclosing(client.watch_cluster()) as watch:
            (cell,) = await anext(watch)
        assert not cell.connected
        assert cell.model == MODEL


async def test_abort_and_cancel_while_no_scheduler_is_there(tmp_path) -> None:
    async with AsyncExitStack() as routers:
        fake = FakeScheduler()
        fake.hold()
        async with running_scheduler(fake) as address:
            router, client, _ = await routers.enter_async_context(router_for(tmp_path, (address,)))
            await router.wait_until_serving()
            aborted = asyncio.create_task(client.generate([5, 6], request_id="aborted"))
            cancelled = asyncio.create_task(client.generate([5, 6], request_id="cancelled"))
            kept = asyncio.create_task(
                client.generate([5, 6], SamplingParams(max_tokens=None), request_id="kept")
            )
            await fake.until(lambda: fake.num_running() == 3)
            await fake.step(2)
        assert await client.abort("aborted")
        completion = await aborted
        assert completion.finish_reason is FinishReason.ABORT
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        again = FakeScheduler()
        async with running_scheduler(again, int(address.rpartition(":")[2])):
            assert len((await kept).token_ids) == MODEL.max_model_len - 2
            assert "aborted" not in [request.request_id for request in again.submitted]
