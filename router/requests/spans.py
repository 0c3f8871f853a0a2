"""Attributes of a request's span at the router, by OpenTelemetry's names for generative AI.

Never what a prompt or an answer says, nor what a client may have put of it elsewhere, such as stop
strings.
"""

from collections.abc import Sequence

from quire.observe.tracing import Span
from router.requests.validate import ValidGenerateRequest


def describe_request(span: Span, request: ValidGenerateRequest) -> None:
    """Say what was asked for.

    Mutates: span.
    """
    params = request.sampling_params
    span.set("gen_ai.operation.name", "text_completion")
    span.set("gen_ai.provider.name", "quire")
    span.set("gen_ai.request.model", request.model.name)
    span.set("gen_ai.request.temperature", params.temperature)
    span.set("gen_ai.request.top_p", params.top_p)
    span.set("gen_ai.request.choice.count", params.n)
    if params.max_tokens is not None:
        span.set("gen_ai.request.max_tokens", params.max_tokens)
    span.set("gen_ai.usage.input_tokens", len(request.prompt_token_ids))


def describe_end(
    span: Span, finish_reasons: Sequence[str], num_output_tokens: int, first_token_s: float | None
) -> None:
    """Say what came of it.

    Args:
        span: of the request.
        finish_reasons: of its outputs, or what it failed with.
        num_output_tokens: over all outputs.
        first_token_s: after its arrival; None if there was no token.

    Mutates: span.
    """
    span.set("gen_ai.response.finish_reasons", finish_reasons)
    span.set("gen_ai.usage.output_tokens", num_output_tokens)
    if first_token_s is not None:
        span.set("gen_ai.server.time_to_first_token", first_token_s)
