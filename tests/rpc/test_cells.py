"""A router and several cells: prefixes, draining, and cells that come and go by DNS."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.block_hashes import extend_block_hashes, reported_depths, short_hash
from quire.contract.errors import OverloadedError, UnavailableError
from quire.contract.outputs import CellState, CellStatus
from quire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import FakeScheduler, running_scheduler
from tests.rpc.router_setup import router_for

BLOCK_SIZE = 16
PROMPT = [3 + position % 200 for position in range(100)]
PARAMS = SamplingParams(max_tokens=4)
DRAINING = scheduler_pb2.Refused(
    reason=scheduler_pb2.REFUSAL_REASON_DRAINING, message="the cell is draining"
)

FULL = scheduler_pb2.Refused(
    reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL, message="7 wait", retry_after_ms=1500
)


def digest(token_ids: list[int]) -> list[int]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, BLOCK_SIZE, len(token_ids) // BLOCK_SIZE)
    return [short_hash(hashes[depth - 1]) for depth in reported_depths(len(hashes))]


def state(mark: int, *, draining: bool = False) -> CellState:
    """A report that differs from others in its number of free blocks."""
    return CellState(
        block_size=BLOCK_SIZE, num_blocks=1000, num_free_blocks=900 + mark, draining=draining
    )


async def seen(client: AsyncClient, *expected: tuple[int, CellState]) -> None:
    """Return when the router knows these cells, by their place in the list, to be so."""
    async with asyncio.timeout(20), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if all(
                place < len(cells) and cells[place].connected and cells[place].state == what
                for place, what in expected
            ):
                return


async def connected(client: AsyncClient, number: int) -> list[CellStatus]:
    """Return the cells once so many are connected and no others are known."""
    async with asyncio.timeout(20), aclosing(client.watch_cluster()) as watch:
        async for cells in watch:
            if len(cells) == number and all(cell.connected for cell in cells):
                return cells
    raise AssertionError("the watch goes on")


@asynccontextmanager
async def two_cells(
    directory: Path, **settings: object
) -> AsyncIterator[tuple[list[FakeScheduler], AsyncClient]]:
    fakes = [FakeScheduler(), FakeScheduler()]
    async with AsyncExitStack() as stack:
        addresses = tuple(
            [await stack.enter_async_context(running_scheduler(fake)) for fake in fakes]
        )
        _, client, _ = await stack.enter_async_context(router_for(directory, addresses, **settings))
        await connected(client, 2)
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place))
        await seen(client, (0, state(0)), (1, state(1)))
        yield fakes, client


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


async def test_a_request_that_crosses_the_word_of_draining_goes_elsewhere(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        # The first holds the prefix, so that all would go there.
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        fakes[0].refuse_next(DRAINING)
        for _ in range(3):
            assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        # After one refusal it is not asked again.
        assert [len(fake.submitted) for fake in fakes] == [0, 3]


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


async def test_a_draining_cell_gets_nothing_new_and_finishes_what_it_has(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].send_state(state(11, draining=True))
        await seen(client, (0, state(11, draining=True)))
        assert len((await client.generate([*PROMPT, 7], PARAMS)).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 1]
        await fakes[0].release()
        assert len((await running).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [1, 1]


async def test_what_is_left_of_a_drained_cell_continues_on_another(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        await fakes[0].send_digest(digest(PROMPT))
        await fakes[0].send_state(state(10))
        await seen(client, (0, state(10)))
        params = SamplingParams(max_tokens=8)
        fakes[0].hold()
        running = asyncio.create_task(client.generate([*PROMPT, 7], params))
        await fakes[0].until(lambda: fakes[0].num_running() == 1)
        await fakes[0].step(3)
        await fakes[0].send_state(state(11, draining=True))
        await seen(client, (0, state(11, draining=True)))
        fakes[0].drop_sessions()
        assert (await running).token_ids == tuple(PROMPT[:8])
        assert [request.num_resumed for request in fakes[1].submitted] == [3]


async def test_where_all_cells_drain_requests_wait_for_one_that_joins(tmp_path: Path) -> None:
    async with two_cells(tmp_path) as (fakes, client):
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place, draining=True))
        await seen(client, (0, state(0, draining=True)), (1, state(1, draining=True)))
        waiting = asyncio.create_task(client.generate([*PROMPT, 7], PARAMS))
        # It connects again and does not drain: as one that was started anew.
        fakes[1].drop_sessions()
        assert len((await waiting).token_ids) == 4
        assert [len(fake.submitted) for fake in fakes] == [0, 1]


async def test_where_all_cells_drain_waiting_has_an_end(tmp_path: Path) -> None:
    async with two_cells(tmp_path, connect_timeout_s=0.2) as (fakes, client):
        for place, fake in enumerate(fakes):
            await fake.send_state(state(place, draining=True))
        await seen(client, (0, state(0, draining=True)), (1, state(1, draining=True)))
        with pytest.raises(UnavailableError, match="no scheduler is reachable"):
            await client.generate([*PROMPT, 7], PARAMS)


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
