"""A router and several cells: prefixes, queues, sizes, and cells that come and go by DNS."""

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from quire.contract.errors import InvalidRequestError, OverloadedError
from tests.fakes.fake_scheduler import MODEL, FakeScheduler, running_scheduler
from tests.rpc.cells_setup import (
    FULL,
    PARAMS,
    PROMPT,
    TOO_LARGE,
    connected,
    digest,
    seen,
    state,
    two_cells,
)
from tests.rpc.router_setup import router_for


@pytest.mark.parametrize("holder", [0, 1])
async def test_requests_go_where_their_prefix_is_and_follow_it(tmp_path: Path, holder: int) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[holder].send_digest(digest(PROMPT))
        await fakes[holder].send_state(state(10))
        await seen(client, (holder, state(10)))
        await client.generate([*PROMPT, 7], PARAMS)
        assert [len(fake.submitted) for fake in fakes] == [1 - holder, holder]
        # The blocks are evicted here, and the other cell has them now.
        await fakes[holder].send_digest([], digest(PROMPT))
        await fakes[1 - holder].send_digest(digest(PROMPT))
        for fake in fakes:
            await fake.send_state(state(20))
        await seen(client, (0, state(20)), (1, state(20)))
        await client.generate([*PROMPT, 8], PARAMS)
        assert [len(fake.submitted) for fake in fakes] == [1, 1]


async def test_the_welcome_has_all_blocks_of_the_cache(tmp_path: Path) -> None:
    fakes = [FakeScheduler() for _ in range(3)]
    fakes[2].block_hashes = digest(PROMPT)
    async with AsyncExitStack() as stack:
        addresses = tuple(
            [await stack.enter_async_context(running_scheduler(fake)) for fake in fakes]
        )
        _, client, _ = await stack.enter_async_context(router_for(tmp_path, addresses))
        await connected(client, 3)
        for _ in range(3):
            await client.generate([*PROMPT, 7], PARAMS)
    assert [len(fake.submitted) for fake in fakes] == [0, 0, 3]


async def test_round_robin_knows_no_prefixes(tmp_path: Path) -> None:
    async with two_cells(tmp_path, routing_policy="round-robin") as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        for _ in range(4):
            await client.generate([*PROMPT, 7], PARAMS)
        assert [len(fake.submitted) for fake in fakes] == [2, 2]


async def test_a_request_whose_cell_has_a_full_queue_goes_elsewhere(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        fakes[0].refuse_next(FULL)
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        # That was about one request: the next one tries the holder of its prefix first.
        assert len((await client.generate([*PROMPT, 8], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 1]
        for fake in fakes:
            fake.refuse_next(FULL)
        with pytest.raises(OverloadedError, match="7 wait") as full:
            await client.generate([*PROMPT, 9], PARAMS)
        assert full.value.retry_after_ms == 1500


async def test_what_is_too_large_for_a_cell_goes_to_a_larger_one(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        small = replace(state(10), num_blocks=10, num_free_blocks=10)
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(small)
        await fakes[1].send_state(state(11))
        await seen(client, (0, small), (1, state(11)))
        fakes[0].refuse_next(TOO_LARGE)
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [0, 1]
        # Where none is larger, the client is given the reason.
        await fakes[0].send_state(replace(small, num_blocks=1000))
        await fakes[1].send_state(state(12, draining=True))
        await seen(client, (0, replace(small, num_blocks=1000)), (1, state(12, draining=True)))
        fakes[0].refuse_next(TOO_LARGE)
        with pytest.raises(InvalidRequestError, match="max_tokens: must be at most 3, got 4"):
            await client.generate([*PROMPT, 7], PARAMS)


@pytest.mark.parametrize("larger_in", ["max_num_seqs", "max_model_len"])
async def test_what_is_too_large_goes_to_cells_that_are_larger_in_any_limit(
    tmp_path: Path, larger_in: str
) -> None:
    fakes = [FakeScheduler(model=replace(MODEL, max_model_len=200)) for _ in range(3)]
    states = [replace(state(place), max_num_seqs=2) for place in range(3)]
    if larger_in == "max_model_len":
        fakes[1].model = MODEL
    else:
        states[1] = replace(states[1], max_num_seqs=3)
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running_scheduler(each)) for each in fakes]
        _, client, _ = await stack.enter_async_context(router_for(tmp_path, tuple(addresses)))
        await connected(client, 3)
        await fakes[0].send_digest(digest(PROMPT))
        for fake, each in zip(fakes, states, strict=True):
            await fake.send_state(each)
        await seen(client, *enumerate(states))
        fakes[0].refuse_next(TOO_LARGE)
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [0, 1, 0]


class Names:
    """A resolver under the control of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] = []
        self.failing = False
        self.num_asked = 0
        self._changed = asyncio.Condition()
        resolve = asyncio.BaseEventLoop.getaddrinfo

        async def getaddrinfo(loop, host, port, **options):  # type: ignore[no-untyped-def]
            if host != "cells.test":
                return await resolve(loop, host, port, **options)
            async with self._changed:
                self.num_asked += 1
                self._changed.notify_all()
            if self.failing:
                raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (h, port)) for h in self.hosts]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)

    async def asked_again(self) -> None:
        """Return when the name has been resolved twice more: the first time may have begun."""
        target = self.num_asked + 2
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.num_asked >= target)


async def test_cells_come_and_go_with_the_addresses_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    first, second = FakeScheduler(), FakeScheduler()
    async with AsyncExitStack() as stack:
        # Different addresses of this machine and one port, as pods have.
        address = await stack.enter_async_context(running_scheduler(first))
        port = int(address.rpartition(":")[2])
        await stack.enter_async_context(running_scheduler(second, port, host="127.0.0.2"))
        names.hosts = ["127.0.0.1"]
        _, client, _ = await stack.enter_async_context(
            router_for(tmp_path, (), scheduler_dns=(f"cells.test:{port}",), dns_interval_s=0.1)
        )
        assert [cell.address for cell in await connected(client, 1)] == [f"127.0.0.1:{port}"]
        await client.generate(PROMPT, PARAMS)
        assert [len(first.submitted), len(second.submitted)] == [1, 0]

        names.hosts = ["127.0.0.1", "127.0.0.2"]
        await connected(client, 2)

        # A name server that does not answer takes no cell away, and neither does a name that no
        # longer has the address of a cell which is connected.
        names.failing = True
        await names.asked_again()
        await connected(client, 2)
        names.failing = False
        names.hosts = ["127.0.0.2"]
        await names.asked_again()
        await connected(client, 2)

        first.drop_sessions()
        assert [cell.address for cell in await connected(client, 1)] == [f"127.0.0.2:{port}"]
        await client.generate([*PROMPT, 9], PARAMS)
        assert [len(first.submitted), len(second.submitted)] == [1, 1]
        assert first.num_sessions == 1
