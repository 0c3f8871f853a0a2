"""How many kernels a layer of a decode step starts on a GPU: each costs a microsecond or more."""

from collections import Counter
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
# Above them a step of a small batch is bound by its launches.
LIMITS = {
    **{"plain": 9, "invariant": 9, "w8a8": 13, "w8": 9, "w4": 9, "float8": 9},
    **{"experts": 13, "experts, invariant": 13, "experts, w8": 13, "experts, w4": 13},
}


def launches_of_step(gpu: EmulatedDevice, directory: Path, **options: Any) -> Counter[str]:
    """What a decode step of some sequences starts, by kernel of torch, and "ours"."""
    runner = load_runner(
        directory,
        dtype="bfloat16",
        device=gpu,
        num_blocks=60,
        max_num_seqs=NUM_SEQUENCES,
        enforce_eager=True,
        **options,
    )
    driver = Driver(runner)
    for sequence in range(NUM_SEQUENCES):
        driver.add(sequence, [sequence + 1, 5, 7])
    driver.step()
    before, ours = Counter(Machine.current.launches), launched()["launches"]
    driver.step()
    return Machine.current.launches - before + Counter(ours=launched()["launches"] - ours)


@pytest.mark.parametrize(
    ("name", "family", "options"),
    [
        ("plain", "llama", {}),
        ("invariant", "llama", {"invariant": True}),
        ("w8a8", "llama", {"quantization": "w8a8"}),
        ("w8", "llama", {"quantization": "w8"}),
        ("w4", "llama", {"quantization": "w4"}),
        ("float8", "llama", {"quantization": "stored"}),
        ("experts", "mixtral", {}),
        ("experts, invariant", "mixtral", {"invariant": True}),
        ("experts, w8", "mixtral", {"quantization": "w8"}),
        ("experts, w4", "mixtral", {"quantization": "w4", "invariant": True}),
    ],
)
def test_launches_of_a_layer(
    emulated_gpu: EmulatedDevice, tmp_path: Path, name: str, family: str, options: dict[str, Any]
) -> None:
    found = []
    for num_layers in (2, 3):
        directory = tmp_path / str(num_layers)
        directory.mkdir()
        if name == "float8":
            form, sizes = FORMATS["fp8 in blocks"], {**WIDE, "num_hidden_layers": num_layers}
            directory, _ = save_both(directory, form, **sizes)
        else:
            save_model(directory, CONFIGS[family](**WIDE, num_hidden_layers=num_layers))
        found.append(launches_of_step(emulated_gpu, directory, **options))
    layer = found[1] - found[0]
    print(f"{name}: {layer.total()} launches of a layer: {dict(layer.most_common())}")
    assert layer["ours"] > 0
    assert layer.total() <= LIMITS.get(name, layer.total())
