"""Quire's own API, by the client of the SDK."""

import time
from collections.abc import Mapping
from contextlib import aclosing
from functools import cache
from typing import Any

from launch.bench.clients.base import RequestFailedError
from launch.bench.datasets import Sample
from launch.bench.outcome import Outcome
from quire.contract.errors import ConfigError, InvalidRequestError, UnavailableError
from quire.contract.outputs import Delta, Event, Finished, FinishReason, Started
from quire.contract.sampling_params import SamplingParams
from quire.sdk.client import AsyncClient


class QuireClient:
    """A client of routers over gRPC; made and used in one event loop.

    A stream that breaks is not resumed, so that it counts as failed.

    Args:
        target: address of a router, or several with commas.
        fields: of the sampling parameters.
        tls_dir: certificates; None speaks in the clear.
        api_key: None takes that of the environment.
        insecure: let the key go in the clear.

    Raises:
        ConfigError: the certificates cannot be used, or a field is no sampling parameter.
    """

    def __init__(
        self,
        target: str,
        *,
        fields: Mapping[str, Any],
        tls_dir: str | None = None,
        api_key: str | None = None,
        insecure: bool = False,
    ) -> None:
        self.model = ""
        self._client = AsyncClient(
            target, tls_dir=tls_dir, api_key=api_key, insecure=insecure, resume_timeout=0
        )

        @cache
        def params(max_tokens: int) -> SamplingParams:
            return SamplingParams(**{"max_tokens": max_tokens, **fields})

        try:
            params(1)
        except (TypeError, InvalidRequestError) as error:
            raise ConfigError(f"extra_body: must have sampling parameters, got {error}") from None
        self._params = params

    async def first_model(self) -> str:
        """Return the name of the first model that is served; errors as of BenchClient."""
        models = await self._client.list_models()
        if not models:
            raise UnavailableError("no model is served yet")
        return models[0].name

    async def send(self, sample: Sample, outcome: Outcome) -> None:
        """Send a request and read its answer; as BenchClient."""
        params = self._params(sample.num_output_tokens)
        clock = time.perf_counter
        outcome.started = outcome.ended = clock()
        stream = self._client.stream(sample.prompt, params, model=self.model)
        async with aclosing(stream):
            async for event in stream:
                _take(clock(), event, outcome)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _take(at: float, event: Event, outcome: Outcome) -> None:
    """Note an event of an answer, of one output or of several."""
    match event:
        case Delta():
            if event.token_ids:
                outcome.arrivals.add(at, len(event.token_ids))
            if event.text:
                outcome.texts.append(event.text)
        case Started():
            outcome.num_prompt_tokens = event.num_prompt_tokens
            return
        case Finished():
            reason = event.finish_reason
            if reason is FinishReason.ABORT or reason.error is not None:
                raise RequestFailedError(f"finish_reason: {reason.value}")
            others = outcome.num_output_tokens or 0
            outcome.num_output_tokens = others + event.num_output_tokens
            outcome.is_complete = True
    outcome.ended = at
