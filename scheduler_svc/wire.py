"""Between protobuf messages and domain objects: the only place here that knows both."""

from collections.abc import Iterable

from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError
from quire.contract.outputs import CellState, Hypothesis, ModelInfo
from quire.contract.sessions import (
    PrefixDigestDelta,
    Queued,
    Refused,
    SessionEvent,
    StepOutputs,
    Submission,
)
from quire.v1 import scheduler_pb2
from quire.wire.common import (
    cell_state_to_proto,
    finish_reason_to_proto,
    model_info_to_proto,
    sampling_params_from_proto,
    time_breakdown_to_proto,
    token_logprobs_to_proto,
)


def submission_from_proto(message: scheduler_pb2.SubmitRequest, max_tokens: int) -> Submission:
    """Read a submitted request.

    Args:
        message: not checked yet.
        max_tokens: more prompt and output tokens than this are refused unread.

    Raises:
        InvalidRequestError: a value is out of bounds.
    """
    fields = [("prompt", message.prompt_token_ids)]
    fields += [("output_token_ids", output.token_ids) for output in message.outputs]
    for field, ids in fields:
        if len(ids) > max_tokens:
            raise InvalidRequestError(
                field, f"must hold at most max_model_len ({max_tokens}) tokens, got {len(ids)}"
            )
    params = sampling_params_from_proto(message.sampling_params)
    if message.outputs and params.seed is None:
        raise InvalidRequestError("seed", "must be given with output_token_ids, got none")
    return Submission(
        request_number=message.request_number,
        request_id=message.request_id,
        prompt_token_ids=list(message.prompt_token_ids),
        outputs={output.sequence_index: list(output.token_ids) for output in message.outputs}
        or None,
        sampling_params=params,
        priority=message.priority,
        cache_salt=message.cache_salt,
        traceparent=message.traceparent,
        include_time_breakdown=message.include_time_breakdown,
    )


def welcome_to_proto(
    model: ModelInfo, state: CellState, block_hashes: Iterable[int]
) -> scheduler_pb2.SessionResponse:
    """Return the first message of a session.

    Args:
        model: that is served.
        state: of the cell.
        block_hashes: all keys of its prefix digest.
    """
    return scheduler_pb2.SessionResponse(
        welcome=scheduler_pb2.Welcome(
            epoch=state.epoch,
            model=model_info_to_proto(model),
            cell_state=cell_state_to_proto(state),
            block_hashes=block_hashes,
        )
    )


def session_event_to_proto(event: SessionEvent) -> scheduler_pb2.SessionResponse:
    """Return the message of an event."""
    match event:
        case StepOutputs():
            outputs = scheduler_pb2.StepOutputs(
                request_numbers=event.request_numbers,
                token_ids=event.token_ids,
                logprobs=map(token_logprobs_to_proto, event.logprobs),
                finished_request_numbers=event.finished_request_numbers,
                finish_reasons=[finish_reason_to_proto(r) for r in event.finish_reasons],
                sequence_indices=event.sequence_indices if any(event.sequence_indices) else (),
                finished_sequence_indices=(
                    event.finished_sequence_indices if any(event.finished_sequence_indices) else ()
                ),
                beam_outputs=[
                    scheduler_pb2.BeamOutputs(
                        request_number=number, hypotheses=map(_hypothesis_to_proto, hypotheses)
                    )
                    for number, hypotheses in event.hypotheses
                ],
                prompt_logprobs=[
                    scheduler_pb2.RequestPromptLogprobs(
                        request_number=number,
                        first_position=each.first_position,
                        logprobs=map(token_logprobs_to_proto, each.logprobs),
                    )
                    for number, each in event.prompt_logprobs
                ],
                time_breakdowns=[
                    scheduler_pb2.RequestTimeBreakdown(
                        request_number=number, time_breakdown=time_breakdown_to_proto(breakdown)
                    )
                    for number, breakdown in event.time_breakdowns
                ],
            )
            return scheduler_pb2.SessionResponse(step_outputs=outputs)
        case CellState():
            return scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(event))
        case PrefixDigestDelta():
            delta = scheduler_pb2.PrefixDigestDelta(added=event.added, removed=event.removed)
            return scheduler_pb2.SessionResponse(prefix_digest_delta=delta)
        case Queued():
            admitted = scheduler_pb2.Admitted(request_number=event.request_number, seed=event.seed)
            return scheduler_pb2.SessionResponse(admitted=admitted)
        case Refused():
            return scheduler_pb2.SessionResponse(refused=_refused_to_proto(event))


def _hypothesis_to_proto(hypothesis: Hypothesis) -> scheduler_pb2.Hypothesis:
    return scheduler_pb2.Hypothesis(
        token_ids=hypothesis.token_ids,
        cumulative_logprob=hypothesis.cumulative_logprob,
        finish_reason=finish_reason_to_proto(hypothesis.finish_reason),
        logprobs=map(token_logprobs_to_proto, hypothesis.logprobs),
    )


def _refused_to_proto(refused: Refused) -> scheduler_pb2.Refused:
    match refused.error:
        case OverloadedError() as error:
            return scheduler_pb2.Refused(
                request_number=refused.request_number,
                reason=scheduler_pb2.REFUSAL_REASON_QUEUE_FULL,
                message=error.message,
                retry_after_ms=error.retry_after_ms,
            )
        case DrainingError() as error:
            return scheduler_pb2.Refused(
                request_number=refused.request_number,
                reason=scheduler_pb2.REFUSAL_REASON_DRAINING,
                message=error.message,
            )
        case InvalidRequestError() as error:
            return scheduler_pb2.Refused(
                request_number=refused.request_number,
                reason=scheduler_pb2.REFUSAL_REASON_INVALID,
                field=error.field,
                message=error.description,
            )
