"""Between protobuf messages and the router's own objects; `quire.wire.common` has shared ones."""

import dataclasses
from collections.abc import Sequence

from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError, QuireError
from quire.contract.outputs import Hypothesis
from quire.v1 import inference_pb2, scheduler_pb2
from quire.wire.common import (
    finish_reason_from_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
    token_logprobs_from_proto,
)
from router.requests.stream import RequestStream
from router.requests.validate import GenerateInput


def generate_input_from_proto(message: inference_pb2.GenerateRequest) -> GenerateInput:
    """Read a Generate request.

    Raises:
        InvalidRequestError: a sampling parameter is out of bounds.
    """
    prompt: str | Sequence[int] = message.text
    if message.WhichOneof("prompt") == "token_ids":
        prompt = message.token_ids.ids
    return GenerateInput(
        message.request_id,
        message.model,
        prompt,
        sampling_params_from_proto(message.sampling_params),
        message.priority,
        message.cache_salt,
        message.include_time_breakdown,
    )


def submit_to_proto(number: int, stream: RequestStream) -> scheduler_pb2.SessionRequest:
    """Return the message that starts a request, or continues it after the tokens it has already."""
    params = dataclasses.replace(
        stream.sampling_params,
        stop=(),
        include_stop_str_in_output=False,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        bad_words=(),
        truncate_prompt_tokens=None,
    )
    if params.width > params.n and params.logprobs is None:
        params = dataclasses.replace(params, logprobs=0)  # to rank the outputs by
    return scheduler_pb2.SessionRequest(
        submit=scheduler_pb2.SubmitRequest(
            request_number=number,
            request_id=stream.request_id,
            prompt_token_ids=stream.request.prompt_token_ids,
            outputs=[
                scheduler_pb2.SequenceOutput(sequence_index=index, token_ids=token_ids)
                for index, token_ids in stream.unfinished_outputs.items()
            ],
            sampling_params=sampling_params_to_proto(params),
            priority=stream.request.priority,
            cache_salt=stream.request.cache_salt,
            traceparent=stream.span.context.traceparent,
            include_time_breakdown=stream.request.include_time_breakdown,
        )
    )


def hypothesis_from_proto(message: scheduler_pb2.Hypothesis) -> Hypothesis:
    """Return a text that a beam search has found."""
    return Hypothesis(
        tuple(message.token_ids),
        message.cumulative_logprob,
        finish_reason_from_proto(message.finish_reason),
        tuple(map(token_logprobs_from_proto, message.logprobs)),
    )


def refusal_from_proto(message: scheduler_pb2.Refused) -> QuireError:
    """Return the error that a refusal means to the client."""
    if message.reason == scheduler_pb2.REFUSAL_REASON_QUEUE_FULL:
        return OverloadedError(message.message, message.retry_after_ms)
    if message.reason == scheduler_pb2.REFUSAL_REASON_DRAINING:
        return DrainingError(message.message)
    return InvalidRequestError(message.field, message.message)
