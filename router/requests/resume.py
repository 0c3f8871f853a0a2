"""Requests whose stream broke: what their client says it has received, and where they go on.

What was received is a claim. It is checked for what no stream could have brought; whether the model
would have chosen these tokens is not, since they decide the answer of that client alone.
"""

import asyncio
import math

from quire.contract.errors import InvalidRequestError
from quire.contract.inputs import ReceivedOutput, ResumeInput
from quire.contract.outputs import FinishReason, ModelInfo
from quire.contract.sampling_params import SamplingParams
from router.requests.output import Output
from router.requests.validate import ValidGenerateRequest, check_ids

# Tokens to take over before other streams have their turn.
TOKENS_AT_ONCE = 256


def check_received(resumed: ResumeInput, request: ValidGenerateRequest) -> None:
    """Check what a client says it has received against its request.

    Raises:
        InvalidRequestError: a stream of this request cannot have brought it.
    """
    params, model = request.sampling_params, request.model
    max_positions = 0 if params.prompt_logprobs is None else len(request.prompt_token_ids) - 1
    if resumed.num_prompt_logprobs > max_positions:
        raise InvalidRequestError(
            "num_prompt_logprobs",
            f"must be at most {max_positions}, got {resumed.num_prompt_logprobs}",
        )
    indices = [output.index for output in resumed.received]
    for place, output in enumerate(resumed.received):
        field = f"received[{place}]"
        if output.index >= params.n:
            raise InvalidRequestError(
                f"{field}.index", f"must be below n ({params.n}), got {output.index}"
            )
        if output.index in indices[:place]:
            raise InvalidRequestError(
                f"{field}.index", f"must be of one output only, got {output.index} twice"
            )
        _check_tokens(f"{field}.token_ids", output, params, model)
        _check_sum(f"{field}.cumulative_logprob", output, params)
    num_ended = sum(output.ended for output in resumed.received)
    if num_ended == params.n:
        raise InvalidRequestError(
            "received", f"must leave an output that goes on, got all {num_ended} as ended"
        )


def _check_tokens(
    field: str, output: ReceivedOutput, params: SamplingParams, model: ModelInfo
) -> None:
    token_ids, max_tokens = output.token_ids, params.max_tokens or 0
    if len(token_ids) > max_tokens:
        raise InvalidRequestError(
            field, f"must hold at most max_tokens ({max_tokens}), got {len(token_ids)}"
        )
    check_ids(field, token_ids, model)
    if not params.use_beam_search:  # whose texts may hold what ends others
        ends = stop_token_ids(params, model).intersection(token_ids[:-1])
        if ends:
            raise InvalidRequestError(
                field, f"must hold no token that ends the output but its last, got {min(ends)}"
            )


def _check_sum(field: str, output: ReceivedOutput, params: SamplingParams) -> None:
    value = output.cumulative_logprob
    if value is not None and not math.isfinite(value):
        raise InvalidRequestError(field, f"must be finite, got {value}")
    goes_on = output.token_ids and not output.ended and not shows_at_end(params)
    if value is None and goes_on and params.logprobs is not None:
        raise InvalidRequestError(field, "must be given where logprobs are, got none")


def shows_at_end(params: SamplingParams) -> bool:
    """Return whether outputs are known only when all of them are complete."""
    return params.use_beam_search or params.width > params.n


def stop_token_ids(params: SamplingParams, model: ModelInfo) -> frozenset[int]:
    """Return the tokens that end an output."""
    eos = () if params.ignore_eos else model.eos_token_ids
    return frozenset((*params.stop_token_ids, *eos))


async def take_over(
    output: Output, received: ReceivedOutput, params: SamplingParams, model: ModelInfo
) -> None:
    """Let an output go on after what was received of it, or end where that ends it.

    Mutates: output, which is new.

    Raises:
        InvalidRequestError: the text of the tokens is of another length, or ends before them.
    """
    field = f"received of output {received.index}"
    if received.ended:
        output.finish(FinishReason.STOP)  # or another reason: its client knows
        output.skip(ReceivedOutput(received.index, ended=True))
        return
    for place, token_id in enumerate(received.token_ids, 1):
        if output.push(token_id, None) and place < len(received.token_ids):
            raise InvalidRequestError(
                field, f"must hold no stop string before its end, got one after {place} tokens"
            )
        if place % TOKENS_AT_ONCE == 0:
            await asyncio.sleep(0)
    if params.logprobs is not None:
        output.cumulative_logprob = received.cumulative_logprob
    # The stream may have broken between the last tokens and the end that they brought.
    if received.token_ids and received.token_ids[-1] in stop_token_ids(params, model):
        output.finish(FinishReason.STOP)
    elif len(received.token_ids) == params.max_tokens:
        output.finish(FinishReason.LENGTH)
    num_unread = output.skip(received)
    if num_unread and output.finish_reason is None:
        num_bytes = received.num_text_bytes
        raise InvalidRequestError(
            field,
            f"text must be of {num_bytes + num_unread} bytes, as its tokens are, got {num_bytes}",
        )
