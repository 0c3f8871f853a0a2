"""What calls for vectors take of a router together, and how long one that finds no room waits."""

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.contract.errors import AbortedError, OverloadedError, RequestExistsError
from quire.contract.inputs import TokenizeInput
from quire.v1 import scheduler_pb2
from router import servicer
from router.http.call import HttpCall
from router.requests import vector_calls
from router.requests.counters import RequestOutcome
from router.requests.inference import MAX_TEXTS_AT_ONCE
from router.requests.patience import MAX_AT_ONCE
from tests.chaos.cluster import free_port
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.rpc.http_setup import http_router
from tests.rpc.router_setup import BACKEND, PROMPT, PROMPT_IDS, router_for, running_router
from tests.rpc.test_embed import TEXTS, TOKENS, expected


def full(retry_after_ms: int) -> scheduler_pb2.Refused:
    return scheduler_pb2.Refused(
        reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL,
        message="full",
        retry_after_ms=retry_after_ms,
    )


async def test_inputs_that_find_no_room_wait_while_others_of_the_call_run(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.refuse_next(full(1))
    fake.refuse_next(full(1))
    async with running_router(tmp_path, fake) as setup:
        found = await setup.client.embed(TEXTS)
        assert [each.tobytes() for each in found.vectors] == expected(*TOKENS)
        assert (fake.num_refused, len(fake.submitted)) == (2, 3)
        counters = setup.router.inference._counters
        assert counters.requests == {("fake", RequestOutcome.FINISHED): 3}, "each is one request"
        assert not counters.errors


async def test_a_call_of_which_nothing_finds_room_is_refused(tmp_path: Path) -> None:
    fake = FakeScheduler()
    async with running_router(tmp_path, fake) as setup:
        for _ in TEXTS:
            fake.refuse_next(full(70))
        with pytest.raises(OverloadedError, match="full") as caught:
            await setup.client.embed(TEXTS)
        assert caught.value.retry_after_ms == 70
        # One that would be sent again after the deadline only fails the call at once.
        fake.hold()
        fake.refuse_next(full(60_000))
        with pytest.raises(OverloadedError, match="full"):
            await setup.client.embed(TEXTS, timeout=30.0)
        await fake.until(lambda: len(fake.cancelled) == 2)


async def test_abort_ends_a_call_whose_first_input_is_done(tmp_path: Path) -> None:
    fake = FakeScheduler()
    async with running_router(tmp_path, fake) as setup:
        first = "i" * 128  # the longest id, of which all others are made
        task = asyncio.create_task(setup.client.embed(TEXTS, request_id=first))
        assert len((await task).vectors) == 3
        fake.refuse_next(full(60_000))  # one of two waits for another minute
        task = asyncio.create_task(setup.client.embed(TEXTS[:2], request_id=first))
        await fake.until(lambda: fake.num_refused == 1 and len(fake.submitted) == 4)
        await fake.until(lambda: fake.num_running() == 0)
        while setup.router._cells.requests:
            await asyncio.sleep(0)
        with pytest.raises(RequestExistsError, match="is in use"):
            await setup.client.embed(TEXTS, request_id=first)
        with pytest.raises(RequestExistsError, match="is in use"):
            await setup.client.generate(PROMPT, request_id=first)
        assert await setup.client.abort(first)
        with pytest.raises(AbortedError, match=f"request_id: {first} was aborted"):
            await task
        errors = setup.router.inference._counters.errors
        assert errors[RequestExistsError.code, RequestExistsError.reason] == 2
        assert errors[AbortedError.code, AbortedError.reason] == 1
        assert not await setup.client.abort(first)


async def test_ids_of_inputs_are_no_other_requests(tmp_path: Path) -> None:
    fake = FakeScheduler()
    fake.hold()
    async with running_router(tmp_path, fake) as setup:
        other = asyncio.create_task(setup.client.generate(PROMPT, request_id="mine-1"))
        await fake.until(lambda: len(fake.submitted) == 1)
        task = asyncio.create_task(setup.client.embed(TEXTS, request_id="mine"))
        await fake.until(lambda: len(fake.submitted) == 4)
        await fake.release()
        assert len((await task).vectors) == 3
        assert (await other).token_ids


async def test_vectors_over_grpc_are_held_until_the_call_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[ExitStack] = []  # so that none is closed by being forgotten

    def new_stack() -> ExitStack:
        stacks.append(ExitStack())
        return stacks[-1]

    monkeypatch.setattr(servicer, "ExitStack", new_stack)
    async with running_router(tmp_path) as setup:
        await setup.client.embed(TEXTS)
        while setup.router.inference.vector_calls.num_held_bytes:
            await asyncio.sleep(0)
        assert len(stacks) == 1


async def test_vectors_of_all_calls_are_bounded_until_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_calls, "MAX_HELD_BYTES", 4 * 4 * MODEL.embedding_size)
    fake, reads, write = FakeScheduler(), asyncio.Event(), HttpCall.write

    async def slow(call: HttpCall, content: bytes, is_last: bool = False) -> None:
        await reads.wait()
        await write(call, content, is_last)

    async with http_router(tmp_path, fake) as setup:
        calls = setup.router.inference.vector_calls
        monkeypatch.setattr(HttpCall, "write", slow)
        answer = asyncio.create_task(setup.post("/v1/embeddings", {"input": TEXTS}))
        await fake.until(lambda: len(fake.submitted) == 3)
        while len(calls):
            await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"vectors: at most 64 bytes are held .* 80"):
            await setup.client.embed(["x", "y"])
        assert len((await setup.client.embed("x")).vectors) == 1
        reads.set()
        assert len((await answer).json()["data"]) == 3
        fake.hold()
        task = asyncio.create_task(setup.client.embed(TEXTS))
        await fake.until(lambda: len(fake.submitted) == 7)
        refused = await setup.post("/score", {"text_1": "x", "text_2": "y"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        await fake.release()
        await task
        while calls.num_held_bytes:  # the server notices a little later
            await asyncio.sleep(0)
        assert len((await setup.client.embed([*TEXTS, "y"])).vectors) == 4


async def test_texts_of_all_calls_leave_the_tokenizer_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_router(tmp_path) as setup:
        tokenizer, held = setup.router._tokenizer, threading.Event()
        monkeypatch.setattr(tokenizer, "_max_queued", MAX_TEXTS_AT_ONCE + 1)
        tokenizer._threads.submit(held.wait, 20.0)
        calls = [
            asyncio.create_task(setup.client.embed([f"text {place}"] * MAX_AT_ONCE))
            for place in range(4)
        ]
        try:
            calls_wait = setup.router.inference.tokenizing.locked
            while not calls_wait():
                await asyncio.sleep(0)
            other = asyncio.create_task(setup.client.tokenize(PROMPT))
            while tokenizer._num_queued <= MAX_TEXTS_AT_ONCE and not other.done():
                await asyncio.sleep(0)
        finally:
            held.set()
        assert tuple(await other) == PROMPT_IDS
        for place, found in enumerate(await asyncio.gather(*calls)):
            ids = tuple(BACKEND.encode(f"text {place}").ids)
            wanted = expected(*[ids] * MAX_AT_ONCE)
            assert [each.tobytes() for each in found.vectors] == wanted


async def test_texts_that_wait_for_a_cell_keep_none_from_the_tokenizer(tmp_path: Path) -> None:
    async with router_for(tmp_path, (f"127.0.0.1:{free_port()}",)) as (router, _, _):
        inference = router.inference
        waiting = [
            asyncio.create_task(inference.tokenize_in_turn(TokenizeInput("text"), "prompt"))
            for _ in range(MAX_TEXTS_AT_ONCE)
        ]
        await asyncio.sleep(0)
        assert not inference.tokenizing.locked()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
