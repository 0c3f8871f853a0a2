"""Host time of a GPU worker's decode step, measured without a GPU: `python -m bench.gpu_host`.

The device is the CPU; what would be started there is left out: graphs that are replayed do nothing,
copies are made at once, events are no work. Left is what Python and the wire cost while the GPU
computes the step before: reading the orders, applying them, placing the batch, and the result. The
plan of attention, which is the CUDA kernels' own, is not in it, nor is the driver.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch

from bench import engine as engine_module
from bench.engine import Engine
from bench.peers.probes import processor
from launch.cluster.config import embedded_model
from quire.contract.sampling_params import SamplingParams
from worker_svc.device.cuda import CudaDevice

SEQUENCES = (64, 256)
PROMPT_TOKENS, TOKENS = 32, 100
# The parts of a step, in their order.
PARTS = ("read the orders", "apply them", "place the batch", "take the tokens", "send the result")


class _Nothing:
    """Stands for streams, events and graphs."""

    def __getattr__(self, name: str) -> Callable[..., float]:
        return lambda *arguments, **options: 0.0


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


def main() -> None:
    """Print a table of the parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    arguments = parser.parse_args()
    print(f"{processor()}; microseconds of a decode step, medians")
    print(f"| sequences | {' | '.join(PARTS)} | all |")
    print("|---" * (len(PARTS) + 2) + "|")
    for number in arguments.sequences:
        found = measure(number)
        cells = " | ".join(f"{found[part]:.0f}" for part in PARTS)
        print(f"| {number} | {cells} | {sum(found.values()):.0f} |", flush=True)


if __name__ == "__main__":
    main()
