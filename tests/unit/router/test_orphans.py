"""Requests whose client is gone, and what a client that comes back gets."""

import asyncio

import pytest

from quire.contract.errors import (
    InvalidRequestError,
    RequestExistsError,
    SupersededError,
    UnavailableError,
)
from quire.contract.inputs import ReceivedOutput
from quire.contract.outputs import (
    Delta,
    Finished,
    FinishReason,
    Hypothesis,
    TokenLogprobs,
)
from router.requests.reader import StreamReader
from tests.unit.router.orphans_setup import (
    SEED,
    STARTED,
    Table,
    make,
    push,
    read,
    resume,
)


@pytest.mark.parametrize("has", ["", "a", "abc", "abcd"])
async def test_a_client_that_comes_back_gets_what_it_lacks_from_memory(has: str) -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    assert len(table.orphans) == 1
    push(stream, "de")
    reader = await table.come_back(make(SEED), resume(has))
    assert table.requests.requests["id"] is stream
    assert (len(table.orphans), table.orphans.num_attached) == (0, 1)
    rest = "abcde"[len(has) :]
    assert await read(reader, 2) == [STARTED, Delta(rest, tuple(map(ord, rest)))]
    push(stream, "f")
    stream.finish_sequence(0, FinishReason.LENGTH)
    last = [event async for event in reader.events()]
    assert last == [Delta("f", (102,)), Finished(FinishReason.LENGTH, 6)]
    table.orphans.left(stream, reader)
    assert table.requests.closed == [stream]


async def test_one_that_ended_meanwhile_is_read_to_its_end_with_its_logprobs() -> None:
    table, stream = Table(), make(logprobs=0)
    table.orphans.open(stream)
    positions = [TokenLogprobs((97 + i,), (-0.1 * i,), 1) for i in range(4)]
    stream.push_token(0, 97, positions[0])
    stream.push_token(0, 98, positions[1])
    reader = StreamReader(stream)
    await read(reader, 2)
    table.orphans.left(stream, reader)
    for i in (2, 3):
        stream.push_token(0, 97 + i, positions[i])
    stream.finish_sequence(0, FinishReason.LENGTH)
    received = ReceivedOutput(0, (97,), 1, cumulative_logprob=-0.0)
    reader = await table.come_back(make(SEED, logprobs=0), resume("", received))
    assert [event async for event in reader.events()] == [
        STARTED,
        Delta("bcd", (98, 99, 100), tuple(positions[1:])),
        Finished(
            FinishReason.LENGTH, 4, cumulative_logprob=sum(each.logprobs[0] for each in positions)
        ),
    ]


async def test_each_of_n_outputs_goes_on_where_its_client_stands() -> None:
    table, stream = Table(), make(n=3)
    table.orphans.open(stream)
    reader = StreamReader(stream)
    for index, text in enumerate(("ab", "cd", "ef")):
        push(stream, text, index)
    stream.finish_sequence(0, FinishReason.LENGTH)
    await read(reader, 5)
    table.orphans.left(stream, reader)
    push(stream, "g", 2)
    received = ReceivedOutput(0, ended=True), ReceivedOutput(2, (101, 102), 2)
    reader = await table.come_back(make(SEED, n=3), resume("", *received))
    assert await read(reader, 3) == [
        STARTED,
        Delta("cd", (99, 100), index=1),
        Delta("g", (103,), index=2),
    ]


BEAMS = {"n": 2, "best_of": 4, "use_beam_search": True, "temperature": 0}


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_beams_are_read_by_a_client_that_comes_back(ends: str) -> None:
    table, stream = Table(), make(**BEAMS)
    await table.drop(stream, "")
    beams = [Hypothesis((97,), -1.0, FinishReason.STOP), Hypothesis((98,), -2.0, FinishReason.STOP)]
    if ends == "before":
        stream.finish_beams(beams)
    reader = await table.come_back(make(SEED, **BEAMS), resume("", ReceivedOutput(0, ended=True)))
    if ends == "after":
        stream.finish_beams(beams)
    assert [event async for event in reader.events()] == [
        STARTED,
        Delta("b", (98,), index=1),
        Finished(FinishReason.STOP, 1, index=1, cumulative_logprob=-2.0),
    ]
    assert table.orphans.num_attached == 1


@pytest.mark.parametrize(
    ("resumed", "fields"),
    [
        (resume("abx"), {}),
        (resume("abcd"), {}),
        (resume("", ReceivedOutput(0, (97, 98, 99), ended=True)), {"n": 2}),
        (resume("ab", numerics_id="5f7a"), {}),
    ],
    ids=["other tokens", "more tokens", "ended there", "other numerics"],
)
async def test_what_does_not_match_is_computed_anew_and_the_orphan_ends(resumed, fields) -> None:
    table, stream, newer = Table(), make(**fields), make(SEED, **fields)
    await table.drop(stream)
    await table.come_back(newer, resumed)
    assert table.requests.requests["id"] is newer
    assert (table.requests.closed, table.orphans.num_attached) == ([stream], 0)


async def test_what_no_stream_can_have_brought_is_refused() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    with pytest.raises(InvalidRequestError, match="text must end"):
        await table.come_back(make(SEED), resume("", ReceivedOutput(0, (97, 98), 4)))
    assert len(table.orphans) == 1


async def test_another_request_of_the_caller_takes_the_id_and_is_not_attached() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    newer = make(SEED, prompt=(5, 7))
    await table.come_back(newer, resume("abc"))
    assert table.requests.requests["id"] is newer
    assert (table.requests.closed, table.orphans.num_attached) == ([stream], 0)


async def test_another_seed_is_another_request() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    await table.come_back(make(SEED + 1), resume("abc"))
    assert table.orphans.num_attached == 0


async def test_a_new_request_of_the_caller_may_have_the_id() -> None:
    table, stream, newer = Table(), make(), make(prompt=(8, 9))
    await table.drop(stream)
    table.orphans.open(newer)
    assert table.requests.requests["id"] is newer
    assert (table.requests.closed, len(table.orphans)) == ([stream], 0)


async def test_another_key_neither_gets_nor_ends_it() -> None:
    table, stream = Table(), make()
    await table.drop(stream)
    with pytest.raises(RequestExistsError):
        await table.come_back(make(SEED, caller="bob"), resume("abc"))
    with pytest.raises(RequestExistsError):
        table.orphans.open(make(caller="bob"))
    assert not table.orphans.abort("id", "bob")
    assert (len(table.orphans), table.requests.closed) == (1, [])


async def test_a_newer_reader_supersedes_one_that_seemed_to_be_there() -> None:
    table, stream = Table(), make()
    older = await table.connect(stream)
    waiting = asyncio.ensure_future(anext(older.events()))
    await asyncio.sleep(0)
    newer = await table.come_back(make(SEED), resume("ab"))
    with pytest.raises(SupersededError, match="id was resumed"):
        await waiting
    table.orphans.left(stream, older)
    older.fail(UnavailableError("it did not read"))
    assert await read(newer, 2) == [STARTED, Delta("c", (99,))]
    assert (len(table.orphans), table.requests.closed, stream.ended) == (0, [], False)


async def test_a_stream_may_break_again_and_again() -> None:
    table, stream = Table(), make()
    await table.drop(stream, "")
    for number, character in enumerate("abcdef"):
        push(stream, character)
        reader = await table.come_back(make(SEED), resume("abcdef"[:number]))
        if number % 2:
            assert await read(reader, 2) == [STARTED, Delta(character, (ord(character),))]
        table.orphans.left(stream, reader)
    assert (table.orphans.num_attached, table.requests.closed) == (6, [])
