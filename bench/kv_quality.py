"""What a byte for each element of the KV cache or of the weights costs in quality, and saves.

The perplexity of a model on its licence, and for caches the divergence of the next token's
distribution of random models from that over one of the model's own type. Run by `make bench-kv`;
`--model` names another than the demo model, for instance one of `tools/train_demo_model.py`.
"""

import argparse
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from launch.cluster.supervisor import embedded_model
from quire.contract.engine_options import LoadOptions
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState
from quire.contract.workers import LoadSpec
from worker_svc.cache.engine import block_bytes
from worker_svc.cache.format import KV_CACHE_DTYPES
from worker_svc.device.base import Device
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.batch import Batch
from worker_svc.steps.runner import ModelRunner

BLOCK_SIZE = 16
NUM_TOKENS = 1000
# hidden_size, query heads, key/value heads, head size.
RANDOM_MODELS = ((256, 4, 4, 64), (512, 8, 2, 64), (512, 4, 1, 128))


def divergence(reference: torch.Tensor, logits: torch.Tensor) -> float:
    """Return the mean Kullback-Leibler divergence in nats of rows [n, vocab_size] of logits."""
    p, q = (each.double().log_softmax(-1) for each in (reference, logits))
    return float((p.exp() * (p - q)).sum(-1).mean())


class Reader:
    """A model, loaded in some way, which reads texts."""

    def __init__(self, directory: Path, options: LoadOptions, device: Device):
        spec = LoadSpec(str(directory), options)
        self.loaded = load_model(spec, "bench", ParallelGroup(), device)
        self.block_bytes = block_bytes(self.loaded, BLOCK_SIZE)

    def logprobs(self, token_ids: list[int]) -> list[float]:
        """Return the log-probability of each token of a text but the first."""
        with torch.inference_mode():
            runner, batch, hidden = self._read(token_ids)
            ((_, found),) = runner.sampler.prompt_logprobs(batch, hidden)
        return [each.logprobs[0] for each in found.logprobs]

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return the logits [n, vocab_size] after each token of a text."""
        with torch.inference_mode():
            _, _, hidden = self._read(token_ids)
            rows = self.loaded.device.place({"rows": np.arange(len(token_ids))})["rows"]
            return self.loaded.model.compute_logits(hidden.index_select(0, rows)).cpu()

    def _read(self, token_ids: list[int]) -> tuple[ModelRunner, Batch, torch.Tensor]:
        """Return what has read a text in one step, its batch and the hidden states.

        One token a step would take minutes: what is cached of a token does not depend on how many
        are computed together, and all are read from the cache.
        """
        num_blocks = -(-len(token_ids) // BLOCK_SIZE)
        runner = ModelRunner(self.loaded, BLOCK_SIZE, num_blocks + 1)
        count = len(token_ids)
        state = SequenceState(
            1,
            0,
            token_ids,
            count,
            0,
            (),
            SamplingParams(temperature=0.0, seed=0, prompt_logprobs=0),
        )
        orders = SchedulerOutputs(
            new_sequences=[state],
            sequence_ids=[1],
            num_scheduled_tokens=[count],
            num_new_blocks=[num_blocks],
            new_block_ids=list(range(1, num_blocks + 1)),
        )
        batch = runner.mirror.apply(orders)
        return runner, batch, runner.inputs.place(batch, layer_by_layer=False).forward()


def windows_of(token_ids: list[int], size: int) -> list[list[int]]:
    """Return a text in pieces of `size` tokens; the last may be shorter."""
    return [token_ids[start : start + size] for start in range(0, len(token_ids), size)]


def perplexity(reader: Reader, windows: list[list[int]]) -> float:
    """Return the perplexity of windows that are read one by one, without their first tokens."""
    return math.exp(-float(np.mean(np.concatenate([reader.logprobs(each) for each in windows]))))


def random_model(directory: Path, shape: tuple[int, int, int, int]) -> Path:
    """Write the configuration of a Llama of this shape; its weights are made up when loaded."""
    import json

    hidden_size, heads, kv_heads, head_dim = shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 2000,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 6,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def print_perplexity(
    what: str, model: Path, options: LoadOptions, device: Device, num_tokens: int
) -> None:
    """Print what options cost a model whose directory has a tokenizer and a licence."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = tokenizer.encode((model / "LICENSE").read_text()).ids[:num_tokens]
    windows = windows_of(text, NUM_TOKENS)
    readers = [Reader(model, each, device) for each in (LoadOptions(), options)]
    before, after = (perplexity(each, windows) for each in readers)
    print(
        f"{what} on {device.name}: perplexity of {model.name} over {len(text)} tokens "
        f"{before:.4f} -> {after:.4f} ({after / before - 1:+.2%}), "
        f"weights {readers[0].loaded.weight_bytes / readers[1].loaded.weight_bytes:.2f}x smaller"
    )


def print_quality(kv_cache_dtype: str, device: Device, num_tokens: int = NUM_TOKENS) -> None:
    """Print what a type of cache costs and saves random models."""
    options = LoadOptions(kv_cache_dtype=kv_cache_dtype)
    for shape in RANDOM_MODELS:
        with tempfile.TemporaryDirectory() as name:
            directory = random_model(Path(name), shape)
            own, small = (
                Reader(directory, replace(each, load_format="dummy"), device)
                for each in (LoadOptions(), options)
            )
        ids = [(31 * i + 7) % 2000 for i in range(num_tokens // 4)]
        nats = divergence(own.logits(ids), small.logits(ids))
        print(
            f"  random model, {shape[1]}/{shape[2]} heads of {shape[3]}: KL {nats:.2e} nats, "
            f"{own.block_bytes / small.block_bytes:.2f}x the tokens of bfloat16 in the same memory"
        )


def main() -> None:
    """Print what the types cost that this machine serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=embedded_model(), help="its perplexity")
    parser.add_argument("--tokens", type=int, default=3 * NUM_TOKENS, help="length of the text")
    arguments = parser.parse_args()
    device = CpuDevice()
    options = {
        f"{name} cache": LoadOptions(kv_cache_dtype=name)
        for name, dtype in KV_CACHE_DTYPES.items()
        if dtype in device.kv_cache_dtypes
    } | {method: LoadOptions(quantization=method) for method in ("w8a8", "w8", "w4")}
    for what, each in options.items():
        print_perplexity(what, arguments.model, each, device, arguments.tokens)
        if each.kv_cache_dtype in KV_CACHE_DTYPES:
            print_quality(each.kv_cache_dtype, device)


if __name__ == "__main__":
    main()
