"""Calls of all workers at once: results, failures, cancellations."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from quire.contract.errors import UnavailableError
from scheduler_svc.workers.client import WorkerClient, on_all


class Calls:
    """Two workers, and what a call of each of them will return."""

    def __init__(self) -> None:
        self.workers = [WorkerClient(rank, f"127.0.0.1:{rank + 1}") for rank in range(2)]
        self.results: list[asyncio.Future[int]] = [asyncio.Future() for _ in self.workers]

    async def result(self, worker: WorkerClient) -> int:
        return await self.results[worker.rank]

    def start(self) -> asyncio.Task[list[int]]:
        return asyncio.create_task(on_all(self.workers, self.result))


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    calls = Calls()
    yield calls
    for worker in calls.workers:
        await worker.close()


async def turn() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_results_are_in_order_of_rank(calls: Calls) -> None:
    running = calls.start()
    await turn()
    calls.results[1].set_result(11)
    await turn()
    assert not running.done()
    calls.results[0].set_result(10)
    assert await running == [10, 11]


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_failure_cancels_the_other_calls(calls: Calls, rank: int) -> None:
    running = calls.start()
    await turn()
    calls.results[rank].set_exception(UnavailableError("gone"))
    with pytest.raises(UnavailableError, match="gone"):
        await running
    assert calls.results[1 - rank].cancelled()


@pytest.mark.parametrize("num_turns", range(4))
async def test_a_cancellation_close_after_a_failure_is_not_lost(
    calls: Calls, num_turns: int
) -> None:
    """Whoever forms the workers until cancelled would form them for ever."""
    running = calls.start()
    await turn()

    def cancel_after(num_turns: int) -> None:
        if num_turns:
            asyncio.get_running_loop().call_soon(cancel_after, num_turns - 1)
        else:
            running.cancel()

    calls.results[0].set_exception(UnavailableError("gone"))
    cancel_after(num_turns)
    await asyncio.wait({running})
    assert running.cancelled()
