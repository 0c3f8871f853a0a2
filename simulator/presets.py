"""Cells that can be simulated by name: a cost model and the cache that goes with it."""

from dataclasses import dataclass, replace
from pathlib import Path

from quire.contract.errors import ConfigError
from simulator import cost_model
from simulator.config import CellConfig
from simulator.cost_model import CostModel
from simulator.roofline import H100_TIMES_8, LLAMA_405B_FP8, cache_blocks, roofline

DEFAULT_PRESET = "405b-h100x8"
_H100_BYTES = 80e9


@dataclass(frozen=True, slots=True)
class Preset:
    """A cell by name.

    Attributes:
        name: of the preset.
        cell: that it describes.
        streams_per_cell: answers under way that keep it busy and still meet 1 s and 50 ms.
    """

    name: str
    cell: CellConfig
    streams_per_cell: int


def _gpu_preset() -> Preset:
    block_size = 32
    cell = CellConfig(
        cost_model=roofline(LLAMA_405B_FP8, H100_TIMES_8, block_size),
        num_blocks=cache_blocks(LLAMA_405B_FP8, H100_TIMES_8, block_size, _H100_BYTES),
        block_size=block_size,
        max_num_batched_tokens=512,
        max_num_seqs=256,
    )
    return Preset(DEFAULT_PRESET, cell, 100)


# As `make bench-simulator` has fitted and measured it, on 2 shared cores.
DEMO_CPU = CostModel(
    name="embedded demo model, one CPU thread of a Zen 4",
    source="measured",
    base_us=2800.0,  # 1,700 in the worker, 1,100 between steps
    token_us=54.5,
    sequence_us=54.0,
    context_us=0.49,
    pair_us=0.058,
    request_us=3200.0,
    answer_us=3200.0,
)


def _cpu_preset() -> Preset:
    cell = CellConfig(
        cost_model=DEMO_CPU,
        num_blocks=16384,
        block_size=16,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        max_model_len=1024,
    )
    return Preset("demo-cpu", cell, 16)


def find_preset(name: str) -> Preset:
    """Return a preset by its name, or one with the cost model of a file.

    Raises:
        ConfigError: no preset has this name, or the file holds no cost model.
    """
    presets = {each.name: each for each in (_gpu_preset(), _cpu_preset())}
    if name in presets:
        return presets[name]
    path = Path(name)
    if not path.exists():
        raise ConfigError(
            f"--cost-model: must be one of {', '.join(presets)} or a file, got {name}"
        )
    base = presets["demo-cpu"]
    return replace(base, name=name, cell=replace(base.cell, cost_model=cost_model.load(path)))
