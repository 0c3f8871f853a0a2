"""OpenVINO GenAI: its pipeline of continuous batches, stepped by a thread."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from bench.peers.adapters.protocol import Engine, Options, serve

# In files there is no bf16. PRECISIONS is what is computed in, and the cache's, int8 without.
WEIGHT_FORMATS = {"bfloat16": "fp16", "float32": "fp32", "int8": "int8"}
PRECISIONS = {"bfloat16": "bf16", "float32": "f32", "int8": "bf16"}


class OpenVino(Engine):
    """A pipeline and the requests that it is working on."""

    def convert(self, options: Options) -> None:
        """Write the model in OpenVINO's form, by optimum-intel."""
        target = options.converted("openvino")
        if (target / "openvino_model.bin").exists():
            return
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", options.model, "--task", "text-generation-with-past"]
        command += ["--weight-format", WEIGHT_FORMATS[options.dtype], str(target)]
        if status := subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"optimum-cli ended with status {status}")

    async def start(self, options: Options) -> str:
        """Compile the model and start the thread."""
        config: Any = genai.SchedulerConfig()
        config.cache_size = options.kv_gib
        config.max_num_seqs = options.max_num_seqs
        config.max_num_batched_tokens = 2048
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = True
        precision = PRECISIONS[options.dtype]
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(options.converted("openvino")),
            config,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": options.num_threads,
                "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": precision,
            },
        )
        self._names = count()
        self._open: dict[int, tuple[Any, asyncio.Queue[int]]] = {}
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return version("openvino-genai")

    def _work(self) -> None:
        """Step while there is anything to do, and pass tokens on after each step."""
        while not self._stopping:
            if not self._pipeline.has_non_finished_requests():
                self._wake.wait()
                self._wake.clear()
                continue
            self._pipeline.step()
            for handle, tokens in list(self._open.values()):
                number = 0
                while handle.can_read():
                    number += sum(len(each.generated_ids) for each in handle.read().values())
                if number:
                    self._loop.call_soon_threadsafe(tokens.put_nowait, number)

    async def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Stream an answer, without its text."""
        config: Any = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        name = next(self._names)
        inputs = openvino.Tensor(np.array([prompt], np.int64))
        tokens: asyncio.Queue[int] = asyncio.Queue()
        self._open[name] = (self._pipeline.add_request(name, inputs, config), tokens)
        self._wake.set()
        left = max_tokens
        while left:
            number = await tokens.get()
            left -= number
            yield number
        del self._open[name]

    async def stop(self) -> None:
        """Stop the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()


if __name__ == "__main__":
    serve(OpenVino())
