"""How a worker starts on a GPU, and what its cache leaves for steps: `python -m bench.gpu_start`.

The worker of a Llama-3-8B with made-up weights loads it, profiles its cache, and makes cache and
graphs. Then steps with as many tokens as one may have run, of requests that ask for all that takes
memory, while torch may take no more than the share of the GPU that the worker was given: they end
if the profile has counted too little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from bench.dummy_model import write_model
from bench.gpu import LLAMA_3_8B
from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.sessions import Submission
from quire.contract.workers import CacheSpec, LoadSpec
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from worker_svc.device.cuda import DEFAULT_GPU_MEMORY_UTILIZATION, CudaDevice
from worker_svc.device.open import open_device
from worker_svc.sampling.largest import largest_params
from worker_svc.steps.pending import PendingStep
from worker_svc.worker import Worker

# Of most requests; they decode for as long as the few with prompts as long as the model allows.
NUM_PROMPT_TOKENS, NUM_TOKENS = 64, 64
NUM_LONG, NUM_LONG_TOKENS = 8, 8
NUM_GAPS = 12


class Start:
    """A worker that starts, and what that takes.

    Args:
        config: of the model, whose weights are made up.
        device: the GPU.
        options: of the cache.
        load: of the model.

    Attributes:
        seconds: of each part.
        num_blocks: of the cache.
        worker: the worker.
    """

    def __init__(
        self, config: dict[str, Any], device: CudaDevice, options: CacheOptions, load: LoadOptions
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._device, self._options = device, options
        self._began = time.perf_counter()
        self.worker = Worker(device)
        self.worker.start_thread()
        with tempfile.TemporaryDirectory() as directory:
            write_model(Path(directory), config)
            self._info = self.worker.load_model(LoadSpec(directory, load), "bench").info
        self._end("load")
        self.num_blocks = self.worker.profile_cache(options).num_blocks
        self._end("profile")
        self.worker.init_cache(CacheSpec(self.num_blocks, options))
        self._end("cache and graphs")

    def _end(self, part: str) -> None:
        self._device.synchronize()
        self.seconds[part] = round(time.perf_counter() - self._began, 3)
        self._began = time.perf_counter()

    def serve(self) -> int:
        """Run the largest steps, each started before the one before it has ended; count them."""
        options = self._options
        scheduler = Scheduler(
            BlockSpaceManager(options.block_size, self.num_blocks, 0.0, 0),
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            max_model_len=self._info.max_model_len,
            eos_token_ids=self._info.eos_token_ids,
            enable_prefix_caching=False,
        )
        # Many that decode, beside chunks of long prompts of which every token is reported.
        num_long = min(NUM_LONG, options.max_num_seqs)
        longest = self._info.max_model_len - NUM_LONG_TOKENS
        reported = replace(
            largest_params(self._info.vocab_size),
            max_tokens=NUM_LONG_TOKENS,
            min_tokens=NUM_LONG_TOKENS,
        )
        others = replace(
            reported, prompt_logprobs=None, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS
        )
        for _ in range(options.max_num_seqs - num_long):
            scheduler.add(Submission([2] * NUM_PROMPT_TOKENS, others))
        for _ in range(num_long):
            scheduler.add(Submission([1] * longest, reported))
        num_steps = 0
        under_way: deque[PendingStep] = deque()
        while scheduler.has_unfinished or under_way:
            while len(under_way) < 2 and (orders := scheduler.schedule()) is not None:
                num_steps += 1
                orders.epoch, orders.step_id = 1, num_steps
                under_way.append(self.worker.execute(orders))
            result = under_way.popleft().result()
            if result.failed_sequence_ids:
                raise RuntimeError(f"sequences failed: {result.failed_sequence_ids}")
            scheduler.update(result)
        return num_steps


def used_bytes() -> int:
    """Return the bytes of the GPU that are taken, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def largest_gaps() -> list[dict[str, object]]:
    """Return the segments of torch with the most bytes that no tensor has, and whose they are."""
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    found = [
        {
            "bytes": each["total_size"],
            "free_bytes": each["total_size"] - each["active_size"],
            "of_graphs": any(each["segment_pool_id"]),
        }
        for each in segments
        if each["active_size"] > 0
    ]
    return sorted(found, key=itemgetter("free_bytes"), reverse=True)[:NUM_GAPS]


def limit_torch(utilization: float) -> int:
    """Let torch take what the share of the GPU leaves beside what others hold; return the share."""
    total = torch.cuda.mem_get_info()[1]
    others = used_bytes() - torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((int(total * utilization) - others) / total)
    return int(total * utilization)


def measure(device: CudaDevice, options: CacheOptions, load: LoadOptions) -> dict[str, object]:
    """Return the figures of a start, and of the memory that the largest steps take."""
    start = Start(LLAMA_3_8B, device, options, load)
    share = limit_torch(options.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    begun = time.perf_counter()
    num_steps = start.serve()
    stats = torch.cuda.memory_stats()
    return {
        "seconds": start.seconds | {"largest steps": round(time.perf_counter() - begun, 3)},
        "steps": num_steps,
        "num_blocks": start.num_blocks,
        "share_bytes": share,
        "used_bytes": used_bytes(),
        "held_bytes": held,
        "held_of_segments_bytes": reserved,
        "step_bytes": stats["allocated_bytes.all.peak"] - held,
        "step_of_segments_bytes": stats["reserved_bytes.all.peak"] - reserved,
        # How often torch found no room before it gave segments back.
        "retries": stats["num_alloc_retries"],
        "gaps": largest_gaps(),
    }


def main() -> int:
    """Print what a start takes and what memory is left; write it as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--invariant", action="store_true", help="as workers with --invariant")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-start: there is no GPU here", file=sys.stderr)
        return 1
    load = LoadOptions(load_format="dummy", invariant=arguments.invariant)
    device = open_device(arguments.device)
    assert isinstance(device, CudaDevice)
    found = measure(device, CacheOptions(swap_space=0.0), load)
    for name, value in found.items():
        print(f"{name}: {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
