"""How many kernels a layer of a decode step starts on a GPU: each costs a microsecond or more."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.emu.emulated_device import EmulatedDevice
from tests.emu.emulated_torch import Machine
from tests.emu.launches import launched
from tests.factories import CONFIGS, save_model
from tests.models.driver import Driver, load_runner
from tests.models.test_published_formats import FORMATS, save_both

NUM_SEQUENCES = 4
WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}
# The rows of DeepSeek's models, which the kernel of latent attention serves.
LATENT = {"hidden_size": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 64}
# Experts in each layer, and two norms of heads.
QWEN = {**WIDE, "moe_intermediate_size": 256, "decoder_sparse_step": 1}
STORED = {"quantization": "stored"}
BLOCKS = "fp8 in blocks"


@dataclass(frozen=True)
class Case:
    """A layer of some kind.

    Attributes:
        limit: of its launches; above it a step of a small batch is bound by them.
        family: of the model.
        options: how it is loaded.
        form: in which the checkpoint stores weights; None for as they are.
        sizes: of the model.
    """

    limit: int
    family: str = "llama"
    options: dict[str, Any] = field(default_factory=dict)
    form: str | None = None
    sizes: dict[str, int] = field(default_factory=WIDE.copy)


CASES = {
    "plain": Case(9),
    "invariant": Case(9, options={"invariant": True}),
    "w8a8": Case(13, options={"quantization": "w8a8"}),
    "w8": Case(9, options={"quantization": "w8"}),
    "w4": Case(9, options={"quantization": "w4"}),
    "float8": Case(9, options=STORED, form=BLOCKS),
    "experts": Case(13, "mixtral"),
    "experts, invariant": Case(13, "mixtral", {"invariant": True}),
    "experts, w8": Case(13, "mixtral", {"quantization": "w8"}),
    "experts, w4": Case(13, "mixtral", {"quantization": "w4", "invariant": True}),
    "experts, float8": Case(15, "qwen3_moe", STORED, BLOCKS, QWEN),
    "latent attention": Case(23, "deepseek_v2", sizes=LATENT),
    "latent attention, invariant": Case(24, "deepseek_v3", {"invariant": True}, sizes=LATENT),
}


def launches_of_step(gpu: EmulatedDevice, directory: Path, **options: Any) -> Counter[str]:
    """What a decode step of some sequences starts, by kernel of torch, and "ours"."""
    of_step: dict[str, Any] = {"num_blocks": 60, "max_num_seqs": NUM_SEQUENCES}
    of_step |= {"enforce_eager": True, **options}
    runner = load_runner(directory, dtype="bfloat16", device=gpu, **of_step)
    driver = Driver(runner)
    for sequence in range(NUM_SEQUENCES):
        driver.add(sequence, [sequence + 1, 5, 7])
    driver.step()
    before, ours = Counter(Machine.current.launches), launched()["launches"]
    driver.step()
    return Machine.current.launches - before + Counter(ours=launched()["launches"] - ours)


@pytest.mark.parametrize("name", CASES)
def test_launches_of_a_layer(emulated_gpu: EmulatedDevice, tmp_path: Path, name: str) -> None:
    case, found = CASES[name], []
    for num_layers in (2, 3):
        directory = tmp_path / str(num_layers)
        directory.mkdir()
        config, sizes = CONFIGS[case.family], {**case.sizes, "num_hidden_layers": num_layers}
        if case.form is None:
            save_model(directory, config(**sizes))
        else:
            directory, _ = save_both(directory, FORMATS[case.form], config, **sizes)
        found.append(launches_of_step(emulated_gpu, directory, **case.options))
    layer = found[1] - found[0]
    print(f"{name}: {layer.total()} launches of a layer: {dict(layer.most_common())}")
    assert 0 < layer["ours"] <= layer.total() <= case.limit


def test_launches_of_a_replayed_layer(emulated_gpu: EmulatedDevice, tmp_path: Path) -> None:
    """A graph always has a merge of attention's partitions, which an eager step needs seldom."""
    found = []
    for num_layers in (2, 3):
        directory = tmp_path / str(num_layers)
        directory.mkdir()
        save_model(directory, CONFIGS["llama"](**WIDE, num_hidden_layers=num_layers))
        options = {"invariant": True, "enforce_eager": False}
        found.append(launches_of_step(emulated_gpu, directory, **options)["ours"])
    assert found[1] - found[0] == CASES["invariant"].limit + 1
