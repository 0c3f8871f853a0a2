"""A real router on a socket, with a fake scheduler: stop strings, cancelled requests, aborts."""

import asyncio
from contextlib import aclosing

import pytest

from quire import SamplingParams
from quire.contract.outputs import (
    Delta,
    Finished,
    FinishReason,
    Started,
)
from tests.rpc.router_setup import (
    BACKEND,
    PROMPT,
    PROMPT_IDS,
    echoed,
    read_all,
    running_router,
    text_of,
    until_late,
)


@pytest.mark.parametrize("include", [False, True])
async def test_stop_string_ends_the_request_here_and_in_the_scheduler(tmp_path, include) -> None:
    async with running_router(tmp_path) as setup:
        params = SamplingParams(
            stop=("no such text", "methods 中文"), include_stop_str_in_output=include
        )
        setup.fake.hold()
        stream = setup.client.stream(PROMPT, params, request_id="stopped")
        reading = asyncio.create_task(read_all(stream))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        # More than it takes: the scheduler runs ahead, what it samples meanwhile is dropped.
        await setup.fake.step(len(PROMPT_IDS))
        events = await reading
        text = "".join(e.text for e in events if isinstance(e, Delta))
        token_ids = sum((e.token_ids for e in events if isinstance(e, Delta)), ())
        assert text == "The list class has " + ("methods 中文" if include else "")
        # The tokens up to and including the one that completed it.
        assert token_ids == echoed(len(token_ids))
        assert "methods 中文" in text_of(token_ids)
        assert "methods 中文" not in text_of(token_ids[:-1])
        assert events[-1] == Finished(FinishReason.STOP, len(token_ids), "methods 中文")
        await setup.fake.until(lambda: setup.fake.cancelled == ["stopped"])
        assert setup.fake.num_running() == 0


async def test_text_that_may_be_a_stop_string_waits(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        prompt = tuple(BACKEND.encode("abcdef").ids)
        params = SamplingParams(stop=("cdx",), max_tokens=len(prompt))
        async with aclosing(setup.client.stream(prompt, params)) as stream:
            assert isinstance(await anext(stream), Started)
            text = ""
            for count in range(1, len(prompt)):
                await setup.fake.step()
                event = await anext(stream)
                assert event.token_ids == (prompt[count - 1],)
                text += event.text
                seen = BACKEND.decode(list(prompt[:count]))
                held = next((h for h in ("cd", "c") if seen.endswith(h)), "")
                assert text == seen[: len(seen) - len(held)]


async def test_leaving_a_stream_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        async with aclosing(setup.client.stream(PROMPT, request_id="left")) as stream:
            assert isinstance(await anext(stream), Started)
            await setup.fake.step()
            assert isinstance(await anext(stream), Delta)
        await setup.fake.until(lambda: setup.fake.cancelled == ["left"])
        # Its id is free again.
        await setup.fake.release()
        await setup.client.generate(PROMPT, SamplingParams(max_tokens=1), request_id="left")


async def test_cancelled_task_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        tasks = [
            asyncio.create_task(setup.client.generate(PROMPT, request_id=f"task {i}"))
            for i in range(8)
        ]
        await setup.fake.until(lambda: setup.fake.num_running() == 8)
        for task in tasks[:4]:
            task.cancel()
        await setup.fake.until(lambda: len(setup.fake.cancelled) == 4)
        assert sorted(setup.fake.cancelled) == [f"task {i}" for i in range(4)]
        await setup.fake.release()
        for completion in await asyncio.gather(*tasks[4:]):
            assert completion.finish_reason is FinishReason.LENGTH


async def test_deadline_frees_the_scheduler(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        await until_late(setup.fake, lambda s: setup.client.generate(PROMPT, timeout=s))
        await setup.fake.until(lambda: len(setup.fake.cancelled) == len(setup.fake.submitted))


async def test_abort_finishes_the_stream(tmp_path) -> None:
    async with running_router(tmp_path) as setup:
        setup.fake.hold()
        task = asyncio.create_task(setup.client.generate(PROMPT, request_id="mine"))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        await setup.fake.step(3)
        assert await setup.client.abort("mine")
        completion = await task
        assert completion.finish_reason is FinishReason.ABORT
        assert completion.token_ids == echoed(len(completion.token_ids))
        await setup.fake.until(lambda: setup.fake.cancelled == ["mine"])
        assert not await setup.client.abort("mine")
