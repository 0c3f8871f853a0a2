"""Mixed steps on a GPU, as graphs and kernel by kernel: `python -m bench.gpu_mixed`.

The same step, a chunk of a prompt beside 32 sequences that decode, is placed and started again and
again, as a worker does that runs ahead: a step then takes what the device or the host needs for it,
whichever is longer. Sampling is left out. Models have the shape of Qwen3-0.6B and of Llama-3-8B and
made-up weights.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.dummy_model import write_model
from bench.gpu import LLAMA_3_8B
from bench.gpu_host import DECODING, mixed_orders
from quire.contract.engine_options import LoadOptions
from quire.contract.workers import LoadSpec
from worker_svc.device.base import Device
from worker_svc.device.cuda import CudaDevice
from worker_svc.device.open import open_device
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.runner import ModelRunner

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
MODELS = {"0.6B": QWEN3_0_6B, "8B": LLAMA_3_8B}
ROWS = (64, 128, 256, 512)
NUM_STEPS = 50


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of a mixed step.

    Attributes:
        model: its name.
        rows: of the step.
        graph_ms: replayed.
        kernels_ms: started kernel by kernel.
    """

    model: str
    rows: int
    graph_ms: float
    kernels_ms: float


def measure(
    name: str, config: dict[str, Any], device: Device, rows: Sequence[int], num_steps: int
) -> list[Result]:
    """Return what steps of a model take."""
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory), config)
        options = LoadOptions(load_format="dummy", dtype="bfloat16", invariant=True)
        loaded = load_model(LoadSpec(directory, options), "bench", ParallelGroup(), device)
    found: dict[int, list[float]] = {each: [] for each in rows}
    for enforce_eager in (False, True):
        runner = ModelRunner(loaded, 16, 400, 0, 2 * DECODING, enforce_eager=enforce_eager)
        for each in rows:
            found[each].append(_step_ms(runner, device, each, num_steps))
            runner.forget_sequences()
    return [Result(name, each, *found[each]) for each in rows]


@torch.inference_mode()
def _step_ms(runner: ModelRunner, device: Device, rows: int, num_steps: int) -> float:
    assert isinstance(device, CudaDevice)
    batch = runner.mirror.apply(mixed_orders(rows))
    # The second of its kind is captured.
    for _ in range(3):
        runner.inputs.place(batch, layer_by_layer=False).forward()
    device.synchronize()
    begun = time.perf_counter()
    for _ in range(num_steps):
        runner.inputs.place(batch, layer_by_layer=False).forward()
    device.synchronize()
    return 1e3 * (time.perf_counter() - begun) / num_steps


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file that gets the figures")
    arguments = parser.parse_args()
    device = open_device("cuda")
    device.start_thread(None)
    found = []
    print("| model | rows | graph, ms | kernel by kernel, ms |\n|---|---|---|---|")
    for name, config in MODELS.items():
        for each in measure(name, config, device, ROWS, NUM_STEPS):
            print(f"| {name} | {each.rows} | {each.graph_ms:.2f} | {each.kernels_ms:.2f} |")
            found.append(each)
    if arguments.json is not None:
        figures = {"mixed": [asdict(each) for each in found]}
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
