"""Quire: a whole cluster of processes, as `quire serve` starts it, and its client."""

from collections.abc import AsyncGenerator
from pathlib import Path

from bench.peers.adapters.protocol import Engine, Options, serve
from launch.cluster.supervisor import Cluster, ClusterConfig
from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Delta
from quire.observe import log
from quire.version import __version__


class Quire(Engine):
    """Router, scheduler and worker over gRPC."""

    async def start(self, options: Options) -> str:
        """Start the cluster."""
        log.configure("bench", "warning")
        quantized = options.dtype == "int8"
        self._cluster = Cluster(
            ClusterConfig(
                model=Path(options.model),
                port=None,
                grpc_port=0,
                device="cpu",
                dtype="bfloat16" if quantized else options.dtype,
                quantization="w8a8" if quantized else "none",
                num_threads=options.num_threads,
                max_num_seqs=options.max_num_seqs,
                max_model_len=options.max_model_len,
                kv_cache_gib=options.kv_gib,
            )
        )
        await self._cluster.start()
        self._client = AsyncClient(self._cluster.router.address)
        return __version__

    async def stream(self, prompt: list[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Stream an answer from the router."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        async for event in self._client.stream(prompt, params):
            if isinstance(event, Delta):
                yield len(event.token_ids)

    async def stop(self) -> None:
        """Stop the cluster."""
        await self._client.close()
        await self._cluster.stop()


if __name__ == "__main__":
    serve(Quire())
