"""Quire, an LLM serving cluster: the contract that the services share, and the SDK."""

from typing import TYPE_CHECKING, Any

from quire.version import __version__

__all__ = [
    "LLM",
    "AsyncClient",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "Client",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]

if TYPE_CHECKING:
    from launch.engine import AsyncLLMEngine, LLMEngine
    from launch.engine_args import AsyncEngineArgs, EngineArgs
    from launch.llm import LLM
    from quire.contract.embeddings import EmbeddingRequestOutput, ScoringRequestOutput
    from quire.contract.pooling_params import PoolingParams
    from quire.contract.request_outputs import CompletionOutput, RequestOutput
    from quire.contract.sampling_params import BeamSearchParams, SamplingParams
    from quire.contract.structured_outputs import StructuredOutputsParams
    from quire.sdk.client import AsyncClient, Client


def __getattr__(name: str) -> Any:
    """Import the SDK on first use, so that `quire --help` does not pay for grpc."""
    if name in ("Client", "AsyncClient"):
        from quire.sdk import client

        return getattr(client, name)
    if name == "LLM":
        from launch.llm import LLM

        return LLM
    if name in ("EngineArgs", "AsyncEngineArgs"):
        from launch import engine_args

        return getattr(engine_args, name)
    if name in ("LLMEngine", "AsyncLLMEngine"):
        from launch import engine

        return getattr(engine, name)
    if name in ("RequestOutput", "CompletionOutput"):
        from quire.contract import request_outputs

        return getattr(request_outputs, name)
    if name in ("SamplingParams", "BeamSearchParams"):
        from quire.contract import sampling_params

        return getattr(sampling_params, name)
    if name in ("EmbeddingRequestOutput", "ScoringRequestOutput"):
        from quire.contract import embeddings

        return getattr(embeddings, name)
    if name == "PoolingParams":
        from quire.contract.pooling_params import PoolingParams

        return PoolingParams
    if name == "StructuredOutputsParams":
        from quire.contract.structured_outputs import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
