"""`make bench-step`: what a decode step of a 125M Llama costs beside its roof, and Python's share.

Scheduler and worker in one process, made-up weights. The roof is the time to read the weights once,
at the bandwidth of a linear read in the same process; Python's share is what a worker's step takes
outside the kernels. Medians, since machines are noisy. `--by-operation` prints the mean time of
each operation, which bounds what fusing it with its neighbour could save.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from bench.engine import Engine
from quire.contract.engine_options import LoadOptions
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import LoadSpec
from worker_svc import ops
from worker_svc.ops import compiled
from worker_svc.steps.pending import PendingStep

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EMBEDDING_SHARE = 32000 * 768 / (12 * 768 * (2 * 768 + 2 * 256 + 3 * 2048) + 2 * 32000 * 768)
PROMPT_TOKENS = 64
READ_BYTES = 256 * 2**20


class Stopwatch:
    """Seconds spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and adds its time."""

        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call


class KernelTime(Stopwatch):
    """Seconds spent in kernels, called one by one or replayed.

    Attributes:
        by_name: the same of each operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Time every kernel that is called inside."""
        own, times = compiled._C, self

        class TimedRecording(own.Recording):
            def replay(self) -> None:
                for name, seconds in times.timed(self.replay_timed)().items():
                    times.by_name[name] += seconds

        def timed(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                before = times.seconds
                result = times.timed(kernel)(*arguments)
                times.by_name[name] += times.seconds - before
                return result

            return call

        class Kernels:
            def __getattr__(self, name: str) -> Any:
                found = getattr(own, name)
                return found if isinstance(found, type) else timed(name, found)

        recording = ops.Recording
        compiled._C, ops.Recording = cast(ModuleType, Kernels()), TimedRecording
        try:
            yield
        finally:
            compiled._C, ops.Recording = own, recording


def read_bytes_per_s() -> float:
    """Return the bandwidth of a linear read by all threads."""
    memory = torch.zeros(READ_BYTES, dtype=torch.int8)
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        ops.stream_read(memory)
        seconds.append(time.perf_counter() - began)
    return READ_BYTES / statistics.median(seconds)


def run(model: Path, dtype: str, num_seqs: int, num_steps: int, by_operation: bool) -> None:
    """Print one row, and the milliseconds of each operation if they are asked for."""
    spec = LoadSpec(str(model), LoadOptions(load_format="dummy", dtype=dtype))
    prompts = [[3 + (7 * i + j) % 900 for j in range(PROMPT_TOKENS)] for i in range(num_seqs)]
    params = SamplingParams(temperature=0.8, seed=0, max_tokens=num_steps, ignore_eos=True)
    kernels = KernelTime()
    with kernels.watch():
        engine = Engine(model, num_blocks=4096, spec=spec)
        engine.run(prompts, params)  # records graphs
        steps = Stopwatch()
        execute = steps.timed(engine.runner.execute)

        def execute_timed(outputs: SchedulerOutputs) -> PendingStep:
            step: PendingStep = execute(outputs)
            if sum(outputs.num_scheduled_tokens) > num_seqs:  # prompts, which come first
                steps.seconds = kernels.seconds = 0.0
                kernels.by_name.clear()
            return step

        engine.runner.execute = execute_timed  # type: ignore[method-assign]
        result = engine.run(prompts, params)
    step_ms = statistics.median(result.decode_us) / 1e3
    # All but the embedding, of which a step reads a row for each token.
    read = engine.loaded.weight_bytes * (1 - EMBEDDING_SHARE)
    roof_ms = read / read_bytes_per_s() * 1e3
    share = 1 - kernels.seconds / steps.seconds
    print(
        f"{dtype:9} {num_seqs:4} sequences: {step_ms:7.2f} ms a step, "
        f"{num_seqs / step_ms * 1e3:6.0f} tokens/s; weights read in {roof_ms:6.2f} ms, "
        f"{roof_ms / step_ms:5.0%} of the step; outside the kernels {share:5.1%}",
        flush=True,
    )
    if by_operation:
        for name, seconds in sorted(kernels.by_name.items(), key=lambda item: -item[1]):
            ms = seconds / len(result.decode_us) * 1e3
            print(f"    {name:24} {ms:7.3f} ms {seconds / steps.seconds:6.1%}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--by-operation", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(SHAPE))
        for dtype in arguments.dtypes:
            for num_seqs in arguments.sequences:
                run(Path(directory), dtype, num_seqs, arguments.steps, arguments.by_operation)


if __name__ == "__main__":
    main()
