"""Requests whose client does not come back: when they end, and what they may hold."""

import time

import pytest

from router.requests.orphans import most_bytes
from router.requests.reader import MAX_UNREAD_TOKENS, StreamReader
from tests.unit.router.orphans_setup import (
    SEED,
    Table,
    make,
    push,
    read,
    resume,
)


async def test_it_ends_after_its_grace_time() -> None:
    table, stream = Table(0.01), make()
    await table.drop(stream)
    await table.requests.closed_one.wait()
    assert (table.requests.closed, stream.ended, len(table.orphans)) == ([stream], True, 0)


async def test_one_that_is_attached_outlives_its_grace_time() -> None:
    table, stream = Table(0.01), make()
    await table.drop(stream)
    await table.come_back(make(SEED), resume("abc"))
    await table.drop(make(request_id="other"))
    await table.requests.closed_one.wait()  # whose time began later
    assert not stream.ended


@pytest.mark.parametrize(
    ("grace_time_s", "fields"),
    [
        (0.0, {}),
        (3600.0, {"resumable": False}),
        (3600.0, {"deadline_s": time.monotonic()}),
    ],
    ids=["no grace", "not asked for", "deadline over"],
)
async def test_others_end_at_once(grace_time_s, fields) -> None:
    table, stream = Table(grace_time_s), make(**fields)
    await table.drop(stream)
    assert (table.requests.closed, stream.ended, len(table.orphans)) == ([stream], True, 0)


async def test_one_that_no_client_can_resume_ends_at_once() -> None:
    table, stream = Table(), make()
    table.orphans.open(stream)
    table.orphans.left(stream, StreamReader(stream))
    assert table.requests.closed == [stream]


async def test_abort_ends_an_orphan_and_frees_its_id() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    assert table.orphans.abort("id", "alice")
    assert (table.requests.requests, len(table.orphans)) == ({}, 0)
    assert not table.orphans.abort("id", "alice")


async def test_one_that_was_aborted_before_its_client_left_is_no_orphan() -> None:
    table, stream = Table(), make()
    reader = await table.connect(stream)
    assert table.orphans.abort("id", "alice")
    table.orphans.left(stream, reader)
    assert (table.requests.requests, len(table.orphans)) == ({}, 0)


async def test_it_is_paused_like_the_stream_of_a_client_that_does_not_read() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    push(stream, "x" * MAX_UNREAD_TOKENS)
    assert table.requests.paused == [stream]
    reader = await table.come_back(make(SEED), resume("abc"))
    _, delta = await read(reader, 2)
    assert len(delta.token_ids) == MAX_UNREAD_TOKENS
    assert table.requests.paused == []


async def test_beyond_what_all_may_hold_the_oldest_ends() -> None:
    streams = [make(request_id=str(i)) for i in range(3)]
    table = Table(max_bytes=2 * most_bytes(streams[0]) + 1000)
    for stream in streams:
        await table.drop(stream)
    assert table.requests.closed == streams[:1]
    assert len(table.orphans) == 2


async def test_what_alone_may_hold_too_much_ends_at_once() -> None:
    kept, large = make(), make(request_id="large", logprobs=20)
    table = Table(max_bytes=most_bytes(large) - 1)
    await table.drop(kept)
    await table.drop(large)
    assert table.requests.closed == [large]


async def test_after_stop_there_are_none() -> None:
    table, streams = Table(), [make(request_id=str(i)) for i in range(2)]
    await table.drop(streams[0])
    reader = await table.connect(streams[1])
    table.orphans.stop()
    assert table.requests.closed == streams[:1]
    table.orphans.left(streams[1], reader)
    assert (table.requests.closed, len(table.orphans)) == (streams, 0)


async def test_a_deadline_that_is_later_now_is_not_cut_short() -> None:
    now = time.monotonic()
    table, stream = Table(), make(deadline_s=now + 1000)
    await table.drop(stream)
    await table.come_back(make(SEED, deadline_s=now + 1000.1), resume("abc"))
    assert table.orphans.num_attached == 1
    await table.come_back(make(SEED), resume("abc"))
    assert table.orphans.num_attached == 1
