"""Output tokens per second on a GPU, of a Llama-3-8B with made-up weights: `make bench-gpu`.

For each number of streams: tokens per second; the time of a decode step against the time that its
weights, keys and values take at the bandwidth of a copy on the same device; and the share of the
time in which the device waits for scheduler, wire or worker. Then what --invariant costs, what
clients of a whole cluster get over gRPC, and what `transformers` does with the same model.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import gpu_cluster
from bench.dummy_model import write_model
from bench.engine import Engine, Run
from bench.gpu_cluster import ClusterResult
from quire.contract.engine_options import LoadOptions
from quire.contract.sampling_params import SamplingParams
from quire.contract.workers import LoadSpec
from worker_svc.cache.engine import block_bytes
from worker_svc.device.base import Device
from worker_svc.device.open import open_device

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}
STREAMS = (1, 8, 64, 256)
NUM_PROMPT_TOKENS = 128
NUM_TOKENS = 128
BLOCK_SIZE = 16
COPY_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Result:
    """Of one number of streams.

    Attributes:
        streams: requests at once.
        tokens_per_s: output tokens.
        step_ms: median time of a decode step on the device.
        roof: time that the bytes of such a step take at the bandwidth of a copy, over `step_ms`.
        gap: share of the time in which the device had nothing to do.
    """

    streams: int
    tokens_per_s: float
    step_ms: float
    roof: float
    gap: float


def copy_rate(device: Device, num_bytes: int = COPY_BYTES) -> float:
    """Return bytes per second, read and written, of a copy; the median of some."""
    source = torch.ones(num_bytes // 2, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    times = []
    for _ in range(9):
        start = device.mark()
        target.copy_(source)
        end = device.mark()
        device.fetch([target[:1]]).wait()
        times.append(device.elapsed_us(start, end))
    return num_bytes / (1e-6 * statistics.median(times))


class Bench:
    """A model with made-up weights on a device.

    Args:
        directory: that gets the configuration.
        device: to compute on.
        config: of the model.
        num_prompt_tokens: of each stream.
        num_tokens: that each stream gets.
    """

    def __init__(
        self,
        directory: Path,
        device: Device,
        config: dict[str, Any],
        num_prompt_tokens: int = NUM_PROMPT_TOKENS,
        num_tokens: int = NUM_TOKENS,
    ) -> None:
        write_model(directory, config)
        self._directory = directory
        self._device = device
        self._config = config
        self._lengths = num_prompt_tokens, num_tokens

    def engine(self, max_streams: int, *, invariant: bool = False) -> Engine:
        """Return scheduler and worker in one process, ready to run."""
        spec = LoadSpec(
            str(self._directory),
            LoadOptions(
                max_model_len=sum(self._lengths) + 1, load_format="dummy", invariant=invariant
            ),
        )
        return Engine(
            self._directory,
            spec=spec,
            device=self._device,
            block_size=BLOCK_SIZE,
            num_blocks=self._num_blocks(max_streams),
            swap_factor=0,
            max_num_seqs=max_streams,
            max_steps_in_flight=2,
        )

    def cluster(self, streams: Sequence[int], device: str) -> list[ClusterResult]:
        """Return what clients of a whole cluster get, for each number of streams."""
        return asyncio.run(
            gpu_cluster.measure(
                self._directory,
                [self.prompts(each) for each in streams],
                self._lengths[1],
                device=device,
                load_format="dummy",
                max_model_len=sum(self._lengths) + 1,
                max_num_seqs=max(streams),
                num_gpu_blocks_override=self._num_blocks(max(streams)),
            )
        )

    def _num_blocks(self, max_streams: int) -> int:
        """Return the blocks of a cache that holds all streams to their end."""
        return max_streams * (-(-sum(self._lengths) // BLOCK_SIZE) + 1) + 8

    def prompts(self, streams: int) -> list[list[int]]:
        """Return random prompts."""
        generator = torch.Generator().manual_seed(streams)
        shape = (streams, self._lengths[0])
        found: list[list[int]] = torch.randint(
            self._config["vocab_size"], shape, generator=generator
        ).tolist()
        return found

    def measure(self, engine: Engine, streams: int, rate: float) -> Result:
        """Run some streams to their end, twice, and measure the second time."""
        params = SamplingParams(
            temperature=0.0, seed=0, max_tokens=self._lengths[1], ignore_eos=True
        )
        for _ in range(2):
            run = engine.run(self.prompts(streams), params)
        step_us = statistics.median(run.decode_us)
        num_bytes = self._bytes_of_step(engine, streams)
        return Result(
            streams=streams,
            tokens_per_s=round(streams * self._lengths[1] / run.seconds, 1),
            step_ms=round(step_us / 1e3, 3),
            roof=round(1e6 * num_bytes / rate / step_us, 3),
            gap=round(_gap(run), 4),
        )

    def transformers(self, streams: int) -> dict[str, float]:
        """Return tokens per second of `generate` one at a time, and of `generate_batch`."""
        import transformers

        library: Any = transformers  # not annotated
        config = library.AutoConfig.from_pretrained(self._directory, trust_remote_code=False)
        with self._device.torch_device:
            model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        num_tokens = self._lengths[1]
        greedy = library.GenerationConfig(
            max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
        prompts = self.prompts(streams)

        def one_at_a_time() -> None:
            inputs = torch.tensor(prompts[:1], device=self._device.torch_device)
            model.generate(inputs, generation_config=greedy)

        def batch() -> None:
            model.generate_batch(prompts, generation_config=greedy)

        rates = {}
        bodies = {"generate": (one_at_a_time, 1), "generate_batch": (batch, streams)}
        for name, (body, count) in bodies.items():
            body()
            began = time.perf_counter()
            body()
            rates[name] = round(count * num_tokens / (time.perf_counter() - began), 1)
        return rates

    def _bytes_of_step(self, engine: Engine, streams: int) -> float:
        """Return what a decode step must read half way: weights, keys and values."""
        loaded = engine.loaded
        # Of the embedding a step reads only its tokens' rows.
        embedding: int = self._config["vocab_size"] * self._config["hidden_size"]
        weights = (loaded.info.num_parameters - embedding) * loaded.dtype.itemsize
        context = self._lengths[0] + self._lengths[1] / 2
        return weights + streams * context * block_bytes(loaded, BLOCK_SIZE) / BLOCK_SIZE


def _gap(run: Run) -> float:
    return max(0.0, 1 - run.device_us / (1e6 * run.seconds))


def main() -> int:
    """Print the tables; write them as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench-gpu: there is no GPU here", file=sys.stderr)
        return 1
    device = open_device(arguments.device)
    device.start_thread(None)
    figures: dict[str, Any] = {}

    def save() -> None:
        """Write what is known so far: a run may be cut short."""
        if arguments.json:
            unfinished = arguments.json.with_suffix(".new")
            unfinished.write_text(json.dumps(figures, indent=1) + "\n")
            unfinished.rename(arguments.json)

    rate = copy_rate(device)
    figures["copy_bytes_per_s"] = rate
    print(f"copy {rate / 1e12:.2f} TB/s")
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), device, LLAMA_3_8B)
        for invariant in (False, True):
            engine = bench.engine(max(arguments.streams), invariant=invariant)
            name = "invariant" if invariant else "default"
            figures[name] = []
            for streams in arguments.streams:
                result = bench.measure(engine, streams, rate)
                figures[name].append(asdict(result))
                save()
                print(
                    f"{name:9} {streams:4} streams {result.tokens_per_s:9.1f} tokens/s, step "
                    f"{result.step_ms:.2f} ms, {result.roof:.0%} of the roof, gap {result.gap:.1%}",
                    flush=True,
                )
            del engine
            gc.collect()
        torch.cuda.empty_cache()
        streams = max(arguments.streams)
        parts: dict[str, Callable[[], Any]] = {
            "cluster": lambda: [
                asdict(each) for each in bench.cluster(arguments.streams, arguments.device)
            ],
            "transformers": lambda: bench.transformers(streams),
        }
        for name, part in parts.items():
            try:
                figures[name] = part()
            except Exception as error:  # of a service, or whatever a version of transformers raises
                figures[f"{name}_error"] = repr(error)
                print(f"{name}: not measured: {error!r}", file=sys.stderr)
            save()
        _compare(figures)
    return 0 if parts.keys() <= figures.keys() else 1


def _compare(figures: dict[str, Any]) -> None:
    """Print what a cluster and `transformers` give beside scheduler and worker in one process."""
    for found, alone in zip(figures.get("cluster", ()), figures["default"], strict=False):
        print(
            f"over gRPC {found['streams']:4} streams {found['tokens_per_s']:9.1f} tokens/s, "
            f"{found['tokens_per_s'] / alone['tokens_per_s']:.2f} of one process, first token "
            f"{found['first_token_ms']:.1f} ms, then {found['token_ms']:.2f} ms"
        )
    ours = figures["default"][-1]
    for name, theirs in figures.get("transformers", {}).items():
        ratio = ours["tokens_per_s"] / theirs
        print(f"transformers {name}: {theirs} tokens/s; ours at {ours['streams']}: {ratio:.1f}x")


if __name__ == "__main__":
    sys.exit(main())
