"""Hugging Face transformers: continuous batching, SDPA attention."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import torch
import transformers

from bench.peers.adapters.protocol import Engine, Options, UnsupportedError, serve

PAGE_SIZE = 16


class Transformers(Engine):
    """A manager of continuous batches, which has a thread of its own."""

    def convert(self, options: Options) -> None:
        """Refuse what it has no kernels of its own for."""
        if options.dtype == "int8":
            raise UnsupportedError("int8 weights need another package (torchao, bitsandbytes)")

    async def start(self, options: Options) -> str:
        """Load the model and start the thread."""
        torch.set_num_threads(options.num_threads)
        dtype = getattr(torch, options.dtype)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=dtype, attn_implementation="sdpa"
        )
        config = model.config
        token_bytes = (
            2
            * config.num_hidden_layers
            * config.num_key_value_heads
            * config.head_dim
            * dtype.itemsize
        )
        self._manager = model.init_continuous_batching(
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=options.kv_gib * 2**30 // (token_bytes * PAGE_SIZE),
                max_batch_tokens=2048,
                max_requests_per_batch=options.max_num_seqs,
            ),
        )
        self._manager.start()
        self._names = map(str, count())
        return str(transformers.__version__)

    async def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Stream an answer; outputs carry all tokens so far."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        name = next(self._names)
        self._manager.register_result_handler(name, outputs.put_nowait)
        self._manager.add_request(prompt, name, max_tokens, streaming=True, eos_token_id=-1)
        seen = 0
        while seen < max_tokens:
            output = await outputs.get()
            if output.error:
                raise RuntimeError(output.error)
            yield len(output.generated_tokens) - seen
            seen = len(output.generated_tokens)

    async def stop(self) -> None:
        """Stop the thread."""
        self._manager.stop(block=True)


if __name__ == "__main__":
    serve(Transformers())
