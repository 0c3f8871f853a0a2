"""Who goes first, and who may share whose prefix, through a whole cluster."""

import asyncio

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from tests.e2e.conftest import StartCluster

PROMPT = list(range(3, 43))


async def test_prefixes_are_shared_within_a_salt_only(start_cluster: StartCluster) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4)
    tokens, hits = [], 0
    async with (
        start_cluster(block_size=16) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        # 2 full blocks of a prompt of 40 tokens.
        for salt, found in (("", 0), ("", 32), ("a", 0), ("b", 0), ("a", 32), ("b", 32)):
            tokens.append((await client.generate(PROMPT, params, cache_salt=salt)).token_ids)
            hits += found
            async for (cell,) in client.watch_cluster():
                # What was reported before the request had ended does not count.
                if cell.state.tokens_total == sum(map(len, tokens)):
                    assert cell.state.prefix_cache_hits_total == hits
                    break
    assert len(set(tokens)) == 1


async def test_an_urgent_request_takes_the_place_of_others(start_cluster: StartCluster) -> None:
    """One runs, one waits; one that comes last, with a better priority, ends first."""
    long = SamplingParams(seed=1, max_tokens=400, ignore_eos=True)
    short = SamplingParams(seed=2, max_tokens=8, ignore_eos=True)
    # Longer than all that it waits for: a client that falls behind reads its end last, too.
    longer = SamplingParams(seed=3, max_tokens=600, ignore_eos=True)
    order: list[str] = []
    async with (
        start_cluster(max_num_seqs=1) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        alone = await client.generate(PROMPT, long)
        events = client.stream(PROMPT, long)
        running: list[int] = []
        while not running:
            event = await anext(events)
            running += event.token_ids if isinstance(event, Delta) else ()

        async def finish_running() -> None:
            async for event in events:
                running.extend(event.token_ids if isinstance(event, Delta) else ())
            order.append("running")

        async def run(
            name: str, params: SamplingParams, priority: int, accepted: asyncio.Event
        ) -> None:
            stream = client.stream(PROMPT, params, priority=priority)
            await anext(stream)
            accepted.set()
            async for _ in stream:
                pass
            order.append(name)

        waiting = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(finish_running())
            tasks.create_task(run("waiting", longer, 5, waiting))
            await waiting.wait()
            tasks.create_task(run("urgent", short, -5, asyncio.Event()))
        assert order == ["urgent", "running", "waiting"]
    assert tuple(running) == alone.token_ids
