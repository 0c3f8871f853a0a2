"""A tiny model as the volume of pods, and the tokens of a cell that serves it."""

import asyncio
from pathlib import Path

from quire import AsyncClient, SamplingParams
from tests.e2e.conftest import running_cluster
from tests.e2e.served_model import save_served_model

PROMPTS = [list(range(5, 25)), list(range(45, 65))]
PARAMS = [
    SamplingParams(temperature=0.0, seed=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=1, max_tokens=24, ignore_eos=True),
]
OPTIONS = {
    "QUIRE_SCHEDULER_DTYPE": "float32",
    "QUIRE_SCHEDULER_INVARIANT": "1",
    "QUIRE_SCHEDULER_MAX_NUM_SEQS": "4",
    "QUIRE_SCHEDULER_MAX_NUM_BATCHED_TOKENS": "64",
    "QUIRE_SCHEDULER_MAX_MODEL_LEN": "64",
    "QUIRE_SCHEDULER_KV_CACHE_GIB": "0.01",
}


def make_model_claim(directory: Path) -> Path:
    """Make the claim quire-model, `directory/claims/quire-model`, with the model at its root.

    A kubelet changes no owner on a volume that is mounted to be read, so anyone may read it.
    """
    claim = directory / "claims" / "quire-model"
    claim.mkdir(parents=True)
    save_served_model(claim, "llama")
    for file in claim.iterdir():
        file.chmod(0o444)
    claim.chmod(0o755)
    return claim


async def tokens_of(client: AsyncClient) -> list[tuple[int, ...]]:
    """Return what the prompts get."""
    pairs = zip(PROMPTS, PARAMS, strict=True)
    outputs = await asyncio.gather(*(client.generate(*each) for each in pairs))
    return [output.token_ids for output in outputs]


async def tokens_of_processes(model: Path) -> list[tuple[int, ...]]:
    """Return what the prompts get from two workers on the CPU, as plain processes."""
    async with (
        running_cluster(
            model, dtype="float32", invariant=True, device="cpu", tensor_parallel_size=2
        ) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        return await tokens_of(client)
