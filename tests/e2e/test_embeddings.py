"""Vectors from whole clusters: transformers' own, and the same bits whatever happens meanwhile."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from launch.cluster.config import embedded_model
from launch.cluster.supervisor import Cluster
from quire import AsyncClient, SamplingParams
from quire.contract.embeddings import Embeddings
from quire.contract.errors import InvalidRequestError
from tests.e2e.conftest import SharedClusters, StartCluster
from tests.e2e.served_model import load_reference, save_served_model

TEXTS = ["The list class", "Return a copy of the", "x", "An iterator is an object " * 40]
# Enough that something can happen to them.
MANY = [[5 + place % 400, *range(100, 400)] for place in range(120)]


@pytest.fixture
def cluster(shared_clusters: SharedClusters) -> Cluster:
    return shared_clusters.get(port=0)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.router.address) as client:
        yield client


def vectors_of(found: Embeddings) -> list[bytes]:
    return [vector.tobytes() for vector in found.vectors]


async def test_a_checkpoint_without_a_head_with_vectors_and_no_text(
    tmp_path: Path, start_cluster: StartCluster
) -> None:
    directory = save_served_model(tmp_path, "mistral")
    body = load_reference(directory).base_model
    body.save_pretrained(directory)
    prompt = [5, 6, 7]
    async with (
        start_cluster(directory, max_model_len=64) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        [vector] = (await client.embed(prompt, normalize=False)).vectors
        [model] = await client.list_models()
        assert (model.architecture, model.vectors_only) == ("MistralModel", True)
        with pytest.raises(InvalidRequestError, match=r"^model: must be one that generates text"):
            await client.generate(prompt)
    with torch.inference_mode():
        expected = body(torch.tensor([prompt])).last_hidden_state[0, -1]
    assert torch.allclose(torch.tensor(vector), expected, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
async def test_vectors_are_the_last_hidden_states_of_transformers(
    family: str, tmp_path: Path, start_cluster: StartCluster
) -> None:
    directory = save_served_model(tmp_path, family)
    async with (
        start_cluster(directory, max_model_len=64) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        texts = ["a list", "b", "another text"]
        token_ids = [await client.tokenize(text) for text in texts]
        found = await client.embed(texts, normalize=False)
        units = await client.embed(token_ids)
    model = load_reference(directory)
    for place, ids in enumerate(token_ids):
        with torch.inference_mode():
            expected = model.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
        vector = torch.tensor(found.vectors[place])
        assert torch.allclose(vector, expected, atol=1e-4 * expected.abs().max().item())
        unit = torch.tensor(units.vectors[place])
        assert torch.allclose(unit, vector / vector.norm(), atol=1e-6)
    assert found.num_prompt_tokens == tuple(map(len, token_ids))


async def test_alone_together_and_with_a_warm_prefix(client: AsyncClient) -> None:
    together = await client.embed(TEXTS)
    assert together.numerics_id == (await client.list_models())[0].numerics_id
    alone = [await client.embed(text, cache_salt=f"cold {text[:9]}") for text in TEXTS]
    assert [vectors_of(each)[0] for each in alone] == vectors_of(together)
    before = await anext(aiter(client.watch_cluster()))
    again = await client.embed(TEXTS)
    assert vectors_of(again) == vectors_of(together)
    async for [cell] in client.watch_cluster():
        if cell.state.prefix_cache_hits_total > before[0].state.prefix_cache_hits_total:
            break
    assert again.num_prompt_tokens == together.num_prompt_tokens


async def test_beside_streams_that_keep_their_tokens(client: AsyncClient) -> None:
    params = SamplingParams(seed=7, max_tokens=120, ignore_eos=True)
    text = await client.generate(TEXTS[0], params)
    expected = await client.embed(MANY[:40])
    streams = [asyncio.create_task(client.generate(TEXTS[0], params)) for _ in range(8)]
    salted = await client.embed(MANY[:40], cache_salt="cold")
    assert vectors_of(salted) == vectors_of(expected)
    assert {each.token_ids for each in await asyncio.gather(*streams)} == {text.token_ids}


@pytest.mark.parametrize("size", [2, 4])
async def test_same_bits_on_several_workers(
    client: AsyncClient, start_cluster: StartCluster, size: int
) -> None:
    expected = await client.embed(TEXTS)
    async with (
        start_cluster(tensor_parallel_size=size) as cluster,
        AsyncClient(cluster.router.address) as other,
    ):
        found = await other.embed(TEXTS)
    assert found.numerics_id == expected.numerics_id
    assert vectors_of(found) == vectors_of(expected)


async def test_preempted_for_who_goes_first(
    client: AsyncClient, start_cluster: StartCluster
) -> None:
    prompts, first = MANY[:20], MANY[20]
    expected = await client.embed(prompts)
    # One prompt of 19 blocks, and none beside it; of each a step computes a little.
    options = {"num_gpu_blocks_override": 34, "max_model_len": 512, "max_num_batched_tokens": 16}
    async with (
        start_cluster(embedded_model(), **options) as cluster,
        AsyncClient(cluster.router.address) as small,
    ):
        task = asyncio.create_task(small.embed(prompts, priority=1))
        async for [cell] in small.watch_cluster():
            if cell.state.num_running:
                break
        assert not task.done()
        await small.generate(first, SamplingParams(max_tokens=1, seed=1))
        async with asyncio.timeout(20):
            async for [cell] in small.watch_cluster():
                if cell.state.preemptions_total > 0:
                    break
        found = await task
    assert vectors_of(found) == vectors_of(expected)


@pytest.mark.parametrize("victim", ["worker 0", "scheduler"])
async def test_killing_a_service_changes_no_bit(
    cluster: Cluster, client: AsyncClient, victim: str
) -> None:
    expected = await client.embed(MANY)
    # Under a salt of its own, so that all of it is computed.
    task = asyncio.create_task(client.embed(MANY, cache_salt=f"kill {victim}"))
    async for [cell] in client.watch_cluster():
        if cell.state.num_running:
            break
    service = next(service for service in cluster.services if service.name == victim)
    killed = service.pid
    assert not task.done()
    os.kill(killed, signal.SIGKILL)
    found = await task
    assert vectors_of(found) == vectors_of(expected)
    assert found.numerics_id == expected.numerics_id
    assert service.pid != killed
