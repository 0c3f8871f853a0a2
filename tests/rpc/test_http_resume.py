"""Streams over HTTP that break: the rest comes from the request as it runs, or is computed anew."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from quire.v1 import scheduler_pb2
from router.requests.validate import MAX_REQUEST_ID_CHARS
from tests.chaos.cluster import free_port
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.http_setup import HttpSetup, Sent, events_of, http_router
from tests.rpc.router_setup import PROMPT, router_for
from tests.rpc.test_orphans import until_orphaned
from tests.rpc.test_resume import scattered

PATH = "/v1/completions"
BODY = {"prompt": PROMPT, "max_tokens": 300, "stop": ["zz", "he"], "echo": True}


def fake() -> FakeScheduler:
    return FakeScheduler(scattered, replace(MODEL, numerics_id="5f7a"))


async def read_and_break(setup: HttpSetup, body: dict[str, Any], count: int) -> list[Sent]:
    """Return so many events of a stream that is broken off then."""
    headers = {"x-request-id": "mine"}
    async with setup.http.stream(
        "POST", PATH, json={**body, "stream": True}, headers=headers
    ) as response:
        events = events_of(response)
        return [await anext(events) for _ in range(count)]


def contents(events: list[Sent]) -> list[tuple[str, Any]]:
    """Return what events say, but for the id of their request."""
    return [(event.id, event.data and event.data["choices"]) for event in events[:-1]]


async def test_with_its_seed_a_stream_is_computed_again_from_any_event(tmp_path) -> None:
    async with http_router(tmp_path, fake()) as setup:
        whole = await setup.events(PATH, {**BODY, "max_tokens": 12})
        for count in range(1, len(whole) - 1):
            events = await read_and_break(setup, {**BODY, "max_tokens": 12}, count)
            resume = {
                "id": events[0].data["id"],
                "seed": events[0].choice["seed"],
                "starting_after": count,
                "system_fingerprint": events[0].data["system_fingerprint"],
            }
            rest = await setup.events(PATH, {**BODY, "max_tokens": 12, "resume": resume})
            assert contents(events + rest) == contents(whole), count
            assert rest[0].data["id"] == "cmpl-mine"


async def test_a_resumable_stream_runs_on_and_nothing_is_computed_again(tmp_path) -> None:
    body = {**BODY, "max_tokens": 16, "resumable": True, "logprobs": 1}
    async with http_router(tmp_path, fake()) as setup:
        whole = await setup.events(PATH, body)
        setup.fake.hold()
        breaking = asyncio.create_task(read_and_break(setup, body, 4))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        await setup.fake.step(5)
        events = await breaking
        await until_orphaned(setup)
        await setup.fake.release()
        headers = {"x-request-id": "mine", "last-event-id": events[-1].id}
        rest = await setup.events(PATH, body, **headers)
        assert contents(events + rest) == contents(whole)
        assert len(setup.fake.submitted) == 2
        assert setup.router.orphans.num_attached == 1


async def test_a_prompt_that_waited_for_room_begins_when_its_stream_is_resumed(tmp_path) -> None:
    body = {"prompt": [[5, 6], [7, 8]], "max_tokens": 6, "temperature": 1.0, "resumable": True}
    async with http_router(tmp_path, FakeScheduler()) as setup:
        whole = await setup.events(PATH, body)
        setup.fake.hold()
        setup.fake.refuse_next(
            scheduler_pb2.Refused(
                reason=scheduler_pb2.REFUSAL_REASON_QUOTA_EXCEEDED,
                message="concurrent",
                retry_after_ms=60_000,
            )
        )
        breaking = asyncio.create_task(read_and_break(setup, body, 1))
        await setup.fake.until(lambda: setup.fake.num_running() == 1)
        await setup.fake.step()
        [event] = await breaking
        await until_orphaned(setup)
        await setup.fake.release()
        headers = {"x-request-id": "mine", "last-event-id": event.id}
        rest = await setup.events(PATH, body, **headers)
        assert setup.router.orphans.num_attached == 1
        for index in range(2):
            of_both = [
                [each.choice["text"] for each in some if each.choice["index"] == index]
                for some in ([event, *rest[:-1]], whole[:-1])
            ]
            assert of_both[0] == of_both[1]


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_a_router_that_has_yet_to_meet_a_cell_resumes_as_any(tmp_path, path) -> None:
    """As one that was killed: it takes requests before it knows what is served."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "seed": 3}
    if path == PATH:
        body = {"prompt": PROMPT, "max_tokens": 8, "seed": 3}
    headers = {"x-request-id": "mine", "last-event-id": "3"}
    async with http_router(tmp_path, fake(), chat_template=template) as setup:
        whole = await setup.events(path, body)
    scheduler = f"127.0.0.1:{free_port()}"
    settings = {"http_port": 0, "sse_keep_alive_interval": 0.05}
    async with router_for(tmp_path, (scheduler,), template, **settings) as (router, _, _):
        url = f"http://{router.http_address}{path}"
        async with (
            httpx.AsyncClient(timeout=60.0) as http,
            http.stream("POST", url, json={**body, "stream": True}, headers=headers) as response,
        ):
            events = events_of(response)
            assert (await anext(events)).comment == "keep-alive"
            async with running_scheduler(fake(), int(scheduler.rpartition(":")[2])):
                rest = [event async for event in events if not event.comment]
    assert contents(rest) == contents(whole)[3:]
    assert rest[0].data["model"] == "fake"


async def test_the_longest_request_id_can_be_resumed(tmp_path) -> None:
    async with http_router(tmp_path, fake()) as setup:
        resume = {"id": f"cmpl-{'x' * MAX_REQUEST_ID_CHARS}", "seed": 1, "starting_after": 2}
        first, *_ = await setup.events(PATH, {**BODY, "max_tokens": 4, "resume": resume})
        assert (first.id, first.data["id"]) == ("3", resume["id"])


@pytest.mark.parametrize(
    ("change", "headers", "status", "param"),
    [
        ({"resume": {"seed": 1}}, {}, 400, "resume.id"),
        ({"resume": {"id": "a", "seed": 1}, "stream": False}, {}, 400, "resume"),
        ({"resume": {"id": "中", "seed": 1, "starting_after": 1}}, {}, 400, "resume.id"),
        ({"resume": {"id": "x\r\ny: z", "seed": 1, "starting_after": 1}}, {}, 400, "resume.id"),
        ({"resume": {"id": "a", "starting_after": -1}}, {}, 400, "resume.starting_after"),
        ({"resume": {"id": "a", "starting_after": "1.2"}}, {}, 400, "resume.starting_after"),
        ({"resume": {"id": "a", "starting_after": 1}}, {}, 400, "seed"),
        ({"resume": {"id": "a", "starting_after": 1, "seed": -1}}, {}, 400, "resume.seed"),
        # That of one of them.
        (
            {"prompt": ["a", "b"], "resume": {"id": "a", "seed": 1, "starting_after": "0.1"}},
            {},
            400,
            "seed",
        ),
        *(
            ({"resume": {"id": "a", "seed": 1, "system_fingerprint": each}}, {}, 412, None)
            for each in ("other.", "other", ".", "a.b.", "..", "中")
        ),
        (
            {"resume": {"id": "a", "seed": 1, "system_fingerprint": "a.b.c"}},
            {},
            400,
            "system_fingerprint",
        ),
        ({}, {"last-event-id": "3"}, 400, "x-request-id"),
        ({}, {"last-event-id": "x", "x-request-id": "a"}, 400, "last-event-id"),
    ],
)  # fmt: skip
async def test_what_cannot_be_resumed_is_refused_by_name(
    tmp_path, change, headers, status, param
) -> None:
    async with http_router(tmp_path, fake()) as setup:
        response = await setup.post(PATH, {**BODY, "stream": True, **change}, **headers)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
