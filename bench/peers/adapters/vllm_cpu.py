"""vLLM on a CPU: its asynchronous engine, without the HTTP server before it."""

import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bench.peers.adapters.protocol import Engine, Options, serve

QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


class Vllm(Engine):
    """AsyncLLM, whose engine core is a process of its own."""

    def convert(self, options: Options) -> None:
        """Write an int8 model as compressed-tensors, a scale for each row of weights."""
        target = options.converted("vllm-cpu")
        if options.dtype != "int8" or (target / "config.json").exists():
            return
        source = Path(options.model)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("config.json", "model.*"))
        weights = {}
        for name, weight in load_file(source / "model.safetensors").items():
            if ".layers." not in name or "layernorm" in name:
                weights[name] = weight
                continue
            scale = weight.float().abs().amax(1, keepdim=True) / 127
            weights[name] = torch.round(weight.float() / scale).to(torch.int8)
            weights[f"{name}_scale"] = scale.to(torch.bfloat16)
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((source / "config.json").read_text())
        document = json.dumps({**config, "quantization_config": QUANTIZATION})
        (target / "config.json").write_text(document)

    async def start(self, options: Options) -> str:
        """Load the model into a process of its own, bound to the cores that this one has."""
        cores = sorted(os.sched_getaffinity(0))[: options.num_threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_gib)
        os.environ["VLLM_CACHE_ROOT"] = str(Path(sys.prefix) / "cache")
        os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = "1"
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        quantized = options.dtype == "int8"
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(options.converted("vllm-cpu")) if quantized else options.model,
                dtype="bfloat16" if quantized else options.dtype,
                max_num_seqs=options.max_num_seqs,
                max_model_len=options.max_model_len,
                max_num_batched_tokens=2048,
                enable_prefix_caching=True,
                disable_log_stats=True,
            )
        )
        self._names = map(str, count())
        return str(vllm.__version__)

    async def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Stream an answer, without its text."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        inputs = {"prompt_token_ids": prompt}
        async for output in self._llm.generate(inputs, params, next(self._names)):
            yield len(output.outputs[0].token_ids)

    async def stop(self) -> None:
        """Stop the process."""
        self._llm.shutdown()


if __name__ == "__main__":
    serve(Vllm())
