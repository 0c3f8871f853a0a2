"""Quire, an LLM serving cluster: the shared contract, the SDK and the command line."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncClient",
    "BeamSearchParams",
    "Client",
    "SamplingParams",
    "__version__",
]

if TYPE_CHECKING:
    from quire.client import AsyncClient, Client
    from quire.llm import LLM
    from quire.sampling_params import BeamSearchParams, SamplingParams


def __getattr__(name: str) -> Any:
    """Import the SDK on first use, so that `quire --help` does not pay for grpc."""
    if name in ("Client", "AsyncClient"):
        from quire import client

        return getattr(client, name)
    if name == "LLM":
        from quire.llm import LLM

        return LLM
    if name in ("SamplingParams", "BeamSearchParams"):
        from quire import sampling_params

        return getattr(sampling_params, name)
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
