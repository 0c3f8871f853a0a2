"""Mixed steps for models on an emulated GPU: of random sizes, with prompts in chunks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from tests.emu.emulated_torch import EmulatedGraph
from tests.emu.test_gpu_sharing import SharingDriver
from tests.factories import CONFIGS, save_model
from tests.models.driver import load_runner
from worker_svc.device.cuda import CudaDevice
from worker_svc.steps.gpu_inputs import GpuInputs
from worker_svc.steps.mixed_graphs import MixedGraphs
from worker_svc.steps.runner import ModelRunner

# By what is special about them. Two heads a group: 32 rows are enough for the kernel of prompts.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chunks to the kernel of prompts": ("llama", {"head_dim": 64}, {}),
    "chunks to that of few columns": ("llama", {"head_dim": 80}, {}),
    "no plan": ("llama", {"head_dim": 16}, {}),
    "float8": ("llama", {"head_dim": 64}, {"kv_cache_dtype": "fp8"}),
    "windows": ("gemma2", {"head_dim": 64}, {}),
    "experts": ("mixtral", {"head_dim": 64}, {}),
    "latent rows": ("deepseek_v3", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, {}),
    "w8": (
        "llama",
        {"head_dim": 64, "hidden_size": 128, "intermediate_size": 256},
        {"quantization": "w8"},
    ),
}
PROMPTS = "chunks to the kernel of prompts"
NUM_LAYERS = 2


def load(
    directory: Path,
    gpu: CudaDevice,
    name: str = PROMPTS,
    *,
    num_layers: int = NUM_LAYERS,
    **options: Any,
) -> SharingDriver:
    """A driver of a model on a GPU."""
    family, sizes, of_model = MODELS[name]
    if not (directory / "config.json").exists():
        config = CONFIGS[family](
            **sizes, num_hidden_layers=num_layers, max_position_embeddings=1024
        )
        save_model(directory, config)
    runner = load_runner(
        directory,
        **{
            **{"dtype": "bfloat16", "device": gpu, "max_num_seqs": 8, "invariant": True},
            **of_model,
            **options,
        },
    )
    return SharingDriver(runner)


def graphs_of(runner: ModelRunner) -> MixedGraphs:
    assert isinstance(runner.inputs, GpuInputs)
    assert runner.inputs.mixed_graphs is not None
    return runner.inputs.mixed_graphs


def num_replays(graphs: MixedGraphs) -> int:
    """How often graphs were replayed."""
    found = graphs.captured.values()
    assert all(isinstance(graph, EmulatedGraph) for graph in found)
    return sum(graph.num_replays for graph in found)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Mix:
    """A step: sequences that decode, and tokens of each prompt that is computed in part."""

    num_decoding: int
    chunks: tuple[int, ...]


def random_mixes(rng: random.Random, count: int) -> list[Mix]:
    return [
        Mix(
            rng.randint(0, 5),
            tuple(rng.choice((2, 9, 33, 50, 70)) for _ in range(rng.randint(1, 3))),
        )
        for _ in range(count)
    ]


def serve(
    driver: SharingDriver, mixes: Sequence[Mix], *, shares: bool = False
) -> list[dict[int, torch.Tensor]]:
    """Run steps of these mixes; return the logits of each.

    Args:
        driver: of nothing yet; afterwards it holds what the last step left.
        mixes: of the steps.
        shares: whether sequences that decode begin with the same blocks.
    """
    rng, found, numbers = random.Random(5), [], count(100)
    decoding = range(1, 6)
    if shares:
        driver.begin()
    for each in decoding:
        tokens = [each, 50 + each]
        driver.add_behind(each, tokens) if shares else driver.add(each, tokens)
    driver.step()
    prompts: dict[int, int] = {}  # by place in a mix: a sequence of which tokens are left
    for mix in mixes:
        scheduled = dict.fromkeys(decoding[: mix.num_decoding], 1)
        for place, size in enumerate(mix.chunks):
            prompt = prompts.get(place, -1)
            if prompt < 0 or driver.num_left(prompt) < size:
                if prompt >= 0:
                    driver.release(prompt)
                prompt = prompts[place] = next(numbers)
                driver.add(prompt, [rng.randrange(3, 99) for _ in range(rng.randint(size, 120))])
            scheduled[prompt] = size
        driver.step(scheduled)
        found.append(driver.logits)
    return found


def caches_of(driver: SharingDriver) -> list[torch.Tensor]:
    stored = driver.runner.cache_engine.caches.stored
    return [each.cpu().view(torch.uint8) for layer in stored for each in layer]
