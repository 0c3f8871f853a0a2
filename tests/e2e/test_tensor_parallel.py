"""Two workers share each layer and give the tokens of one."""

import pytest

from quire import AsyncClient, SamplingParams
from tests.e2e.conftest import StartCluster

PROMPTS = ("The list class", "Return a copy of the string", "A function definition")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_two_ranks_give_the_tokens_of_one(
    temperature: float, start_cluster: StartCluster
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=32, ignore_eos=True)
    answers = []
    for size in (1, 2):
        async with (
            start_cluster(None, "--dtype", "float32", tensor_parallel_size=size) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            answers.append([(await client.generate(p, params)).token_ids for p in PROMPTS])
    assert answers[0] == answers[1]
