"""Host time of a GPU worker's steps, measured without a GPU: `python -m bench.gpu_host`.

The device is the CPU; what would be started there is left out: graphs that are replayed do nothing,
copies are made at once, events are no work. Left is what Python and the wire cost while the GPU
computes the step before: reading the orders, applying them, placing the batch, and the result. The
plan of attention, which is the CUDA kernels' own, is not in it, nor is the driver.

A mixed step, with a chunk of a prompt beside sequences that decode, is placed and started twice: as
a graph, and kernel by kernel. Then our kernels are left out, and layers are so narrow that torch's
take no time. That is less than it costs: each launch takes the driver some microseconds as well.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from bench import engine as engine_module
from bench.dummy_model import write_model
from bench.engine import Engine
from bench.peers.probes import processor
from launch.cluster.config import embedded_model
from quire.contract.engine_options import LoadOptions
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState
from quire.contract.workers import LoadSpec
from worker_svc.device.cuda import CudaDevice
from worker_svc.layers import device_linear
from worker_svc.loading.loader import load_model
from worker_svc.ops import compiled
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.batch import Batch
from worker_svc.steps.runner import ModelRunner

SEQUENCES = (64, 256)
PROMPT_TOKENS, TOKENS = 32, 100
# Rows of mixed steps, of which so many sequences decode.
ROWS, DECODING = (64, 128, 256, 512), 32
# As many layers as a model of 8B has; how wide they are costs the host nothing.
DEEP_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
REPEATS = 30
# The parts of a step, in their order.
PARTS = ("read the orders", "apply them", "place the batch", "take the tokens", "send the result")


class _Nothing:
    """Stands for streams, events and graphs."""

    def __getattr__(self, name: str) -> Callable[..., float]:
        return lambda *arguments, **options: 0.0


class _NoKernels:
    """Stands for our kernels, which plan nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class HostDevice(CudaDevice):
    """A CudaDevice of which only what the host does is left."""

    def make_torch_device(self, index: int) -> torch.device:
        """See CudaDevice."""
        return torch.device("cpu")

    def new_stream(self) -> Any:
        """See CudaDevice."""
        return _Nothing()

    def new_event(self, *, timing: bool = False) -> Any:
        """See CudaDevice."""
        return _Nothing()

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See CudaDevice."""
        return torch.empty(tuple(shape), dtype=dtype)

    def pinned_for_long(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See CudaDevice."""
        return self.pinned(shape, dtype)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """See CudaDevice."""
        return nullcontext()

    def capture(self, work: Callable[[], None], pool: Any) -> Any:
        """See CudaDevice."""
        return _Nothing()

    def new_pool(self) -> Any:
        """See CudaDevice."""

    def synchronize(self) -> None:
        """See CudaDevice."""

    @property
    def isa(self) -> str:
        """See CudaDevice."""
        return "none"

    @property
    def kv_cache_dtypes(self) -> tuple[torch.dtype, ...]:
        """See CudaDevice."""
        return ()


class Times:
    """Microseconds of parts of steps, by name."""

    def __init__(self) -> None:
        self.of_part: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def taken(self, owner: Any, name: str, part: str) -> Iterator[None]:
        """Record how long a function of a module or an object takes, while the block runs."""
        function = getattr(owner, name)

        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments, **options)
            self.of_part[part].append(1e6 * (time.perf_counter() - began))
            return result

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, function)


def measure(num_sequences: int) -> dict[str, float]:
    """Return the median microseconds of each part of a decode step."""
    blocks = num_sequences * -(-(PROMPT_TOKENS + TOKENS) // 16)
    engine = Engine(
        embedded_model(),
        num_blocks=blocks,
        max_num_seqs=num_sequences,
        max_steps_in_flight=2,
        device=HostDevice(0),
    )
    runner, times = engine.runner, Times()
    prompts = [[3 + row] * PROMPT_TOKENS for row in range(num_sequences)]
    with (
        times.taken(engine_module, "scheduler_outputs_from_proto", PARTS[0]),
        times.taken(runner.mirror, "apply", PARTS[1]),
        times.taken(runner.inputs, "place", PARTS[2]),
        times.taken(runner._pending, "settle", PARTS[3]),
        times.taken(engine_module, "step_result_to_proto", PARTS[4]),
    ):
        engine.run(
            prompts, SamplingParams(temperature=0.0, seed=0, max_tokens=TOKENS, ignore_eos=True)
        )
    return {part: statistics.median(times.of_part[part]) for part in PARTS}


def measure_mixed(rows: int) -> tuple[float, float, float, float]:
    """Return the median microseconds to place and to start a mixed step: as a graph, and not."""
    found: list[float] = []
    with (
        tempfile.TemporaryDirectory() as name,
        patched(compiled, "_C", _NoKernels()),
        patched(device_linear, "PackedLinear", torchs_linear),
    ):
        write_model(Path(name), DEEP_MODEL)
        options = LoadOptions(load_format="dummy", dtype="bfloat16")
        loaded = load_model(LoadSpec(name, options), "bench", ParallelGroup(), HostDevice(0))
        for enforce_eager in (False, True):
            runner = ModelRunner(loaded, 16, 400, 0, 2 * DECODING, enforce_eager=enforce_eager)
            with torch.inference_mode():
                runner.capture_graphs()
                found += _times_of_step(runner, runner.mirror.apply(mixed_orders(rows)))
    placed, replayed, placed_alone, started = found
    return placed, replayed, placed_alone, started


def torchs_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> device_linear.Linear:
    """Return the layer that a GPU has by default."""
    return partial(functional.linear, weight=weight, bias=bias)


def _times_of_step(runner: ModelRunner, batch: Batch) -> tuple[float, float]:
    placing, starting = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        placed = runner.inputs.place(batch, layer_by_layer=False)
        between = time.perf_counter()
        placed.forward()
        placing.append(1e6 * (between - began))
        starting.append(1e6 * (time.perf_counter() - between))
    return statistics.median(placing), statistics.median(starting)


def mixed_orders(rows: int) -> SchedulerOutputs:
    """Return the orders of a step of so many rows: a chunk of a prompt beside what decodes."""
    params = SamplingParams(temperature=0.0, seed=0)
    counts = [1] * DECODING + [rows - DECODING]
    return SchedulerOutputs(
        new_sequences=[
            SequenceState(each, 0, [5] * (64 + count), 64, 64, [each] * 4, params)
            for each, count in enumerate(counts)
        ],
        sequence_ids=list(range(len(counts))),
        num_scheduled_tokens=counts,
        num_new_blocks=[-(-count // 16) for count in counts],
        new_block_ids=[40 + block for count in counts for block in range(-(-count // 16))],
        epoch=1,
        step_id=1,
    )


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value at a name while the block runs."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def main() -> None:
    """Print a table of the parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    arguments = parser.parse_args()
    # What stands for the device copies: threads that wait for a busy core are none of its host's.
    torch.set_num_threads(1)
    measure(1)  # what is made at the first call
    print(f"{processor()}; microseconds of a decode step, medians")
    print(f"| sequences | {' | '.join(PARTS)} | all |")
    print("|---" * (len(PARTS) + 2) + "|")
    for number in arguments.sequences:
        found = measure(number)
        cells = " | ".join(f"{found[part]:.0f}" for part in PARTS)
        print(f"| {number} | {cells} | {sum(found.values()):.0f} |", flush=True)
    print(f"\nmicroseconds of a mixed step of {DEEP_MODEL['num_hidden_layers']} layers, medians")
    print("| rows | place it | replay it | place it without graphs | start its kernels |")
    print("|---|---|---|---|---|")
    for rows in arguments.rows:
        times = " | ".join(f"{each:.0f}" for each in measure_mixed(rows))
        print(f"| {rows} | {times} |", flush=True)


if __name__ == "__main__":
    main()
