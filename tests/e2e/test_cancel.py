"""A client that goes away gives its blocks back at once."""

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import CellState, Delta
from tests.e2e.conftest import SharedClusters


async def state_when_idle(client: AsyncClient) -> CellState:
    """Wait for a report without any request; the test's time limit bounds the wait."""
    async for cells in client.watch_cluster():
        state = cells[0].state
        if state.num_running == state.num_waiting == 0 and state.num_blocks:
            return state
    raise AssertionError("the watch ended")


async def test_cancel_and_abort_free_every_block(shared_clusters: SharedClusters) -> None:
    endless = SamplingParams(seed=1, ignore_eos=True, max_tokens=480)
    async with AsyncClient(shared_clusters.get().router.address) as client:
        before = await state_when_idle(client)
        async for event in client.stream("The list class", endless):
            if isinstance(event, Delta):
                break  # leaving the loop cancels the call
        async for event in client.stream("The list class", endless, request_id="mine"):
            if isinstance(event, Delta):
                assert await client.abort("mine")
                break
        assert not await client.abort("no such request")
        state = await state_when_idle(client)
        assert state.num_free_blocks == state.num_blocks
        # Two abandoned requests of 480 tokens would have sampled 960.
        assert state.tokens_total - before.tokens_total < 400
