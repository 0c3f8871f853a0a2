"""A real router on a socket: a stream that breaks runs on, and its client attaches again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from quire import AsyncClient, Client, SamplingParams
from quire.contract.errors import SupersededError
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from quire.sdk.collect import Collector
from quire.sdk.resume import ResumableStream
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.router_setup import Setup, running_router
from tests.rpc.test_resume import HE, PROMPT, Routers, completion_of, scattered
from tests.rpc.test_slow_readers import Cable

REQUEST = GenerateInput(PROMPT, SamplingParams(max_tokens=24), "mine", resumable=True)


async def read_until_broken(
    routers: Routers, stream: ResumableStream, num_tokens: int = 0
) -> list[Event]:
    """Read the beginning of what is left of a stream and so many tokens, and break it off.

    Tokens are counted, not events: those of several steps may come together.
    """
    seen: list[Event] = []
    async with aclosing(routers.call(0, stream.request)) as events:
        async for event in events:
            if stream.take(event):
                seen.append(event)
            if isinstance(event, Delta):
                num_tokens -= len(event.token_ids)
            if num_tokens <= 0:
                break
    return seen


async def until_orphaned(setup: Setup, count: int = 1) -> None:
    """Return when the router knows that a client has gone; the test's time limit bounds it."""
    while len(setup.router.orphans) != count:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=24, logprobs=3),
        SamplingParams(max_tokens=24, stop=("zz", "he", "\ufffd\ufffd\ufffd")),
    ],
    ids=["tokens", "logprobs", "stop strings"],
)
async def test_cut_anywhere_a_stream_goes_on_and_nothing_is_computed_again(
    tmp_path, params
) -> None:
    fake = FakeScheduler(scattered, replace(MODEL, numerics_id="5f7a"))
    async with running_router(tmp_path, fake) as setup, aclosing(routers_of(setup)) as routers:
        whole = completion_of(await routers.read(0, replace(REQUEST, sampling_params=params)))
        for num_tokens in range(len(whole.token_ids) - 1):
            fake.hold()
            request = replace(REQUEST, sampling_params=params, request_id=f"cut {num_tokens}")
            stream = ResumableStream(request, 1, 60.0)
            breaking = asyncio.create_task(read_until_broken(routers, stream, num_tokens))
            await fake.until(lambda: fake.num_running() == 1)
            await fake.step(num_tokens)
            events = await breaking
            await until_orphaned(setup)
            await fake.step()  # while nobody is there
            num_submitted = len(fake.submitted)
            rest = routers.call(0, stream.request)
            async with aclosing(rest):
                started = await anext(rest)
                assert isinstance(started, Started)
                stream.take(started)
                await fake.release()
                async for event in rest:
                    assert stream.take(event)
                    events.append(event)
            assert stream.is_complete
            assert completion_of(events) == whole, num_tokens
            assert len(fake.submitted) == num_submitted
        assert setup.router.orphans.num_attached == len(whole.token_ids) - 1
        assert fake.cancelled.count("mine") <= 1  # of what a stop string ended


def routers_of(setup: Setup) -> Routers:
    return Routers(setup.fake, (setup.address,))


async def test_one_that_ends_without_a_client_is_read_to_its_end(tmp_path) -> None:
    async with running_router(tmp_path) as setup, aclosing(routers_of(setup)) as routers:
        whole = completion_of(await routers.read(0, replace(REQUEST, request_id="")))
        setup.fake.hold()
        stream = ResumableStream(REQUEST, 1, 60.0)
        events = await read_until_broken(routers, stream)
        await until_orphaned(setup)
        await setup.fake.release()
        await setup.fake.until(lambda: setup.fake.num_running() == 0)
        events += [event for event in await routers.read(0, stream.request) if stream.take(event)]
        assert completion_of(events) == whole
        assert len(setup.fake.submitted) == 2


@pytest.mark.parametrize("resumable", [False, True])
async def test_it_ends_at_once_or_after_its_grace_time(tmp_path, resumable) -> None:
    grace_time_s = 0.05 if resumable else 3600.0
    async with (
        running_router(tmp_path, grace_time_s=grace_time_s) as setup,
        aclosing(routers_of(setup)) as routers,
    ):
        setup.fake.hold()
        stream = ResumableStream(replace(REQUEST, resumable=resumable), 1, 60.0)
        events = await read_until_broken(routers, stream)
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        await setup.fake.release()
        events += [event for event in await routers.read(0, stream.request) if stream.take(event)]
        assert stream.is_complete
        assert len(setup.fake.submitted) == 2, "computed anew"


async def test_a_half_open_stream_is_taken_over_without_a_second_submission(tmp_path) -> None:
    async with running_router(tmp_path) as setup, aclosing(routers_of(setup)) as routers:
        setup.fake.hold()
        stream = ResumableStream(REQUEST, 1, 60.0)
        async with aclosing(routers.call(0, stream.request)) as older:
            stream.take(await anext(older))
            await setup.fake.step()
            stream.take(await anext(older))
            async with aclosing(routers.call(0, stream.request)) as newer:
                assert isinstance(await anext(newer), Started)
                with pytest.raises(SupersededError, match="mine was resumed"):
                    await anext(older)
                await setup.fake.release()
                async for event in newer:
                    stream.take(event)
        assert stream.is_complete
        assert len(setup.fake.submitted) == 1
        assert setup.fake.cancelled == []


async def test_what_does_not_match_is_computed_anew_and_the_orphan_ends(tmp_path) -> None:
    fake = FakeScheduler(scattered)
    async with running_router(tmp_path, fake) as setup, aclosing(routers_of(setup)) as routers:
        fake.hold()
        stream = ResumableStream(REQUEST, 1, 60.0)
        await read_until_broken(routers, stream)
        await until_orphaned(setup)
        resumed = stream.request
        assert isinstance(resumed, ResumeInput)
        claimed = replace(resumed, received=(ReceivedOutput(0, HE[:1], 1),))
        reading = asyncio.create_task(routers.read(0, claimed))
        # Released sooner, the orphan could reach its end before it is cancelled.
        await fake.until(lambda: fake.cancelled == ["mine"])
        await fake.release()
        events = await reading
        assert events[-1] == Finished(FinishReason.LENGTH, 24)
        assert [each.num_resumed for each in fake.submitted] == [0, 1]


async def test_abort_ends_an_orphan(tmp_path) -> None:
    async with running_router(tmp_path) as setup, aclosing(routers_of(setup)) as routers:
        setup.fake.hold()
        await read_until_broken(routers, ResumableStream(REQUEST, 1, 60.0))
        await until_orphaned(setup)
        assert await setup.client.abort("mine")
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        assert len(setup.router.orphans) == 0
        assert not await setup.client.abort("mine")


async def test_a_draining_router_does_not_wait_for_orphans(tmp_path) -> None:
    async with (
        running_router(tmp_path, grace_time_s=3600.0, drain_timeout_s=3600.0) as setup,
        aclosing(routers_of(setup)) as routers,
    ):
        setup.fake.hold()
        await read_until_broken(routers, ResumableStream(REQUEST, 1, 60.0))
        await until_orphaned(setup)
        await setup.router.drain()
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])


async def test_a_cell_that_is_lost_meanwhile_changes_no_token(tmp_path) -> None:
    async with running_router(tmp_path) as setup, aclosing(routers_of(setup)) as routers:
        whole = completion_of(await routers.read(0, replace(REQUEST, request_id="")))
        setup.fake.hold()
        stream = ResumableStream(REQUEST, 1, 60.0)
        events = await read_until_broken(routers, stream)
        await until_orphaned(setup)
        await setup.fake.step(3)
        setup.fake.drop_sessions()
        await setup.fake.release()
        events += [event for event in await routers.read(0, stream.request) if stream.take(event)]
        assert completion_of(events) == whole
        assert setup.router.orphans.num_attached == 1


async def leave(stream: AsyncGenerator[Event, None]) -> None:
    await stream.aclose()


async def cancel(stream: AsyncGenerator[Event, None]) -> None:
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("ends", [leave, cancel])
async def test_who_leaves_a_stream_of_the_sdk_ends_its_request(tmp_path, ends) -> None:
    async with running_router(tmp_path, grace_time_s=3600.0) as setup:
        setup.fake.hold()
        async with AsyncClient(setup.address) as client:
            stream = client.stream(PROMPT, request_id="mine")
            assert isinstance(await anext(stream), Started)
            await ends(stream)
            await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        assert len(setup.router.orphans) == 0


async def test_who_closes_the_client_at_once_ends_its_request(tmp_path) -> None:
    def leave_early(address: str) -> None:
        with Client(address) as client:
            stream = client.stream(PROMPT, request_id="mine")
            assert isinstance(next(stream), Started)
            stream.close()

    async with running_router(tmp_path, grace_time_s=3600.0) as setup:
        setup.fake.hold()
        await asyncio.to_thread(leave_early, setup.address)
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        assert len(setup.router.orphans) == 0


async def test_a_stream_of_the_sdk_whose_connection_breaks_attaches(tmp_path) -> None:
    async with running_router(tmp_path) as setup, Cable(setup.address) as cable:
        params = SamplingParams(max_tokens=24)
        whole = await setup.client.generate(PROMPT, params)
        setup.fake.hold()
        async with AsyncClient(cable.address) as client:
            collector = Collector()
            stream = client.stream(PROMPT, params)
            collector.add(await anext(stream))
            await setup.fake.step()
            collector.add(await anext(stream))
            cable.drop()
            await setup.fake.release()
            async for event in stream:
                collector.add(event)
        completion = collector.completions()[0]
        assert replace(completion, request_id=whole.request_id) == whole
        assert len(setup.fake.submitted) == 2
        assert setup.router.orphans.num_attached == 1
