"""Kill a worker or the scheduler in mid-stream: the tokens are those of an undisturbed run."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from quire import AsyncClient, SamplingParams
from quire.outputs import Delta, Finished, FinishReason, TokenLogprobs
from tests.e2e.conftest import StartCluster

PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=200, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.7, 1.0, 1.3))
]
PARAMS.append(replace(PARAMS[2], repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2))
PROMPTS = (
    "The list class",
    "Return a copy of the",
    "A function definition",
    "class Foo:",
    "The with statement",
)


async def collect(
    client: AsyncClient, index: int, some_arrived: asyncio.Event | None = None
) -> tuple[str, list[int], list[TokenLogprobs]]:
    """Text, token ids and logprobs of a stream; says when its first tokens have arrived."""
    text, token_ids, logprobs = "", [], []
    async for event in client.stream(PROMPTS[index], PARAMS[index]):
        match event:
            case Delta():
                text += event.text
                token_ids += event.token_ids
                logprobs += event.logprobs
                if some_arrived and len(token_ids) > 20:
                    some_arrived.set()
            case Finished():
                assert event.finish_reason is FinishReason.LENGTH
    return text, token_ids, logprobs


@pytest.mark.parametrize("victim", ["worker 0", "scheduler"])
async def test_killing_a_service_changes_no_token(start_cluster: StartCluster, victim: str) -> None:
    async with start_cluster() as cluster, AsyncClient(cluster.router.address) as client:
        expected = [await collect(client, index) for index in range(len(PROMPTS))]
        assert len(expected[-1][2]) == 200

        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(client, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived))
        service = next(service for service in cluster.services if service.name == victim)
        killed = service.pid
        os.kill(killed, signal.SIGKILL)

        assert await asyncio.gather(*streams) == expected
        assert service.pid != killed
