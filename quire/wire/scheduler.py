"""To and from the messages of scheduler.proto."""

from quire.contract.errors import (
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    QuarantinedError,
    QuotaExceededError,
    TooLargeError,
    UnreachableDeadlineError,
)
from quire.contract.outputs import CellState, Hypothesis
from quire.contract.quotas import UNLIMITED, Quotas
from quire.contract.sessions import (
    Announcement,
    BlockSource,
    Cancellation,
    Heartbeat,
    PrefixDigestDelta,
    Queued,
    RefusalError,
    Refused,
    RouterMessage,
    SessionEvent,
    StepOutputs,
    Submission,
    Suspected,
    Welcome,
)
from quire.contract.steps import PromptLogprobs
from quire.v1 import scheduler_pb2
from quire.wire.common import (
    cell_state_from_proto,
    cell_state_to_proto,
    finish_reason_from_proto,
    finish_reason_to_proto,
    model_info_from_proto,
    model_info_to_proto,
    pooling_params_from_proto,
    pooling_params_to_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
    time_breakdown_from_proto,
    time_breakdown_to_proto,
    token_logprobs_from_proto,
    token_logprobs_to_proto,
)
from quire.wire.fields import fields_of, from_fields

# ---------------------------------------------------------------- from routers


def session_request_to_proto(message: RouterMessage) -> scheduler_pb2.SessionRequest:
    """Return the message of what a router sends in a session."""
    if isinstance(message, Submission):
        return scheduler_pb2.SessionRequest(submission=submission_to_proto(message))
    if isinstance(message, Heartbeat):
        return scheduler_pb2.SessionRequest(heartbeat=scheduler_pb2.Heartbeat())
    cancel = scheduler_pb2.Cancellation(
        request_numbers=message.request_numbers,
        sequences=[
            scheduler_pb2.SequenceName(request_number=number, sequence_index=index)
            for number, index in message.sequences
        ],
    )
    return scheduler_pb2.SessionRequest(cancellation=cancel)


def session_request_from_proto(message: scheduler_pb2.SessionRequest) -> RouterMessage | None:
    """Return what a router sent in a session; None for what is not known here.

    Raises:
        InvalidRequestError: a value of a submission is out of bounds.
    """
    match message.WhichOneof("message"):
        case "submission":
            return submission_from_proto(message.submission)
        case "cancellation":
            cancel = message.cancellation
            sequences = [(each.request_number, each.sequence_index) for each in cancel.sequences]
            return Cancellation(list(cancel.request_numbers), sequences)
        case "heartbeat":
            return Heartbeat()
        case _:
            return None


def submission_to_proto(submission: Submission) -> scheduler_pb2.Submission:
    """Return the message of a submission."""
    fields = fields_of(submission)
    fields["sampling_params"] = sampling_params_to_proto(submission.sampling_params)
    fields["pooling_params"] = pooling_params_to_proto(submission.pooling_params)
    fields["quotas"] = (
        scheduler_pb2.Quotas(**fields_of(submission.quotas)) if submission.quotas else None
    )
    fields["outputs"] = [
        scheduler_pb2.SequenceOutput(sequence_index=index, token_ids=token_ids)
        for index, token_ids in (submission.outputs or {}).items()
    ]
    return scheduler_pb2.Submission(**fields)


def submission_from_proto(message: scheduler_pb2.Submission) -> Submission:
    """Return the submission of a message.

    Raises:
        InvalidRequestError: a sampling parameter is out of bounds, the seed is missing, or what is
            asked for does not go together.
    """
    has_quotas = message.HasField("quotas")
    return from_fields(
        Submission,
        message,
        prompt_token_ids=list(message.prompt_token_ids),
        outputs={each.sequence_index: list(each.token_ids) for each in message.outputs} or None,
        sampling_params=sampling_params_from_proto(message.sampling_params),
        pooling_params=pooling_params_from_proto(message),
        quotas=from_fields(Quotas, message.quotas) if has_quotas else UNLIMITED,
    )


# ---------------------------------------------------------------- to routers


def session_event_to_proto(event: SessionEvent) -> scheduler_pb2.SessionResponse:
    """Return the message of what a scheduler sends in a session."""
    match event:
        case StepOutputs():
            return scheduler_pb2.SessionResponse(step_outputs=step_outputs_to_proto(event))
        case CellState():
            return scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(event))
        case PrefixDigestDelta():
            delta = scheduler_pb2.PrefixDigestDelta(added=event.added, removed=event.removed)
            return scheduler_pb2.SessionResponse(prefix_digest_delta=delta)
        case BlockSource():
            source = scheduler_pb2.BlockSource(worker_addresses=event.worker_addresses)
            return scheduler_pb2.SessionResponse(block_source=source)
        case Heartbeat():
            return scheduler_pb2.SessionResponse(heartbeat=scheduler_pb2.Heartbeat())
        case Queued():
            queued = scheduler_pb2.Queued(request_number=event.request_number, seed=event.seed)
            return scheduler_pb2.SessionResponse(queued=queued)
        case Refused():
            return scheduler_pb2.SessionResponse(refused=refused_to_proto(event))
        case Suspected():
            suspected = scheduler_pb2.Suspected(**fields_of(event))
            return scheduler_pb2.SessionResponse(suspected=suspected)
        case Welcome():
            welcome = scheduler_pb2.Welcome(
                epoch=event.cell_state.epoch,
                model=model_info_to_proto(event.model),
                cell_state=cell_state_to_proto(event.cell_state),
                block_hashes=event.block_hashes,
                protocol_version=event.protocol_version,
            )
            return scheduler_pb2.SessionResponse(welcome=welcome)


def session_event_from_proto(message: scheduler_pb2.SessionResponse) -> SessionEvent | None:
    """Return what a scheduler sent in a session; None for what is not known here."""
    match message.WhichOneof("message"):
        case "step_outputs":
            return step_outputs_from_proto(message.step_outputs)
        case "cell_state":
            return cell_state_from_proto(message.cell_state)
        case "prefix_digest_delta":
            delta = message.prefix_digest_delta
            return PrefixDigestDelta(tuple(delta.added), tuple(delta.removed))
        case "heartbeat":
            return Heartbeat()
        case "block_source":
            return BlockSource(tuple(message.block_source.worker_addresses))
        case "queued":
            return Queued(message.queued.request_number, message.queued.seed)
        case "refused":
            return refused_from_proto(message.refused)
        case "suspected":
            return from_fields(Suspected, message.suspected)
        case "welcome":
            welcome = message.welcome
            return Welcome(
                model_info_from_proto(welcome.model),
                cell_state_from_proto(welcome.cell_state),
                tuple(welcome.block_hashes),
                welcome.protocol_version,
            )
        case _:
            return None


def step_outputs_to_proto(outputs: StepOutputs) -> scheduler_pb2.StepOutputs:
    """Return the message of what a step brought; indices are left out where all are 0."""
    return scheduler_pb2.StepOutputs(
        request_numbers=outputs.request_numbers,
        token_ids=outputs.token_ids,
        logprobs=map(token_logprobs_to_proto, outputs.logprobs),
        finished_request_numbers=outputs.finished_request_numbers,
        finish_reasons=map(finish_reason_to_proto, outputs.finish_reasons),
        sequence_indices=_unless_all_zero(outputs.sequence_indices),
        finished_sequence_indices=_unless_all_zero(outputs.finished_sequence_indices),
        beam_outputs=[
            scheduler_pb2.BeamOutputs(
                request_number=number, hypotheses=map(hypothesis_to_proto, hypotheses)
            )
            for number, hypotheses in outputs.hypotheses
        ],
        prompt_logprobs=[
            scheduler_pb2.RequestPromptLogprobs(
                request_number=number,
                first_position=part.first_position,
                logprobs=map(token_logprobs_to_proto, part.logprobs),
            )
            for number, part in outputs.prompt_logprobs
        ],
        time_breakdowns=[
            scheduler_pb2.RequestTimeBreakdown(
                request_number=number, time_breakdown=time_breakdown_to_proto(breakdown)
            )
            for number, breakdown in outputs.time_breakdowns
        ],
        vectors=[
            scheduler_pb2.RequestVector(request_number=number, vector=vector)
            for number, vector in outputs.vectors
        ],
        cached_tokens=[
            scheduler_pb2.RequestCachedTokens(request_number=number, num_tokens=num_tokens)
            for number, num_tokens in outputs.cached_tokens
        ],
    )


def step_outputs_from_proto(message: scheduler_pb2.StepOutputs) -> StepOutputs:
    """Return what a step brought."""
    numbers, finished = list(message.request_numbers), list(message.finished_request_numbers)
    return StepOutputs(
        request_numbers=numbers,
        sequence_indices=list(message.sequence_indices) or [0] * len(numbers),
        token_ids=list(message.token_ids),
        finished_request_numbers=finished,
        finished_sequence_indices=list(message.finished_sequence_indices) or [0] * len(finished),
        finish_reasons=list(map(finish_reason_from_proto, message.finish_reasons)),
        logprobs=list(map(token_logprobs_from_proto, message.logprobs)),
        hypotheses=[
            (each.request_number, list(map(hypothesis_from_proto, each.hypotheses)))
            for each in message.beam_outputs
        ],
        prompt_logprobs=[
            (
                each.request_number,
                PromptLogprobs(
                    each.first_position, list(map(token_logprobs_from_proto, each.logprobs))
                ),
            )
            for each in message.prompt_logprobs
        ],
        time_breakdowns=[
            (each.request_number, time_breakdown_from_proto(each.time_breakdown))
            for each in message.time_breakdowns
        ],
        vectors=[(each.request_number, each.vector) for each in message.vectors],
        cached_tokens=[(each.request_number, each.num_tokens) for each in message.cached_tokens],
    )


def _unless_all_zero(indices: list[int]) -> list[int]:
    return indices if any(indices) else []


def hypothesis_to_proto(hypothesis: Hypothesis) -> scheduler_pb2.Hypothesis:
    """Return the message of a text that a beam search has found."""
    return scheduler_pb2.Hypothesis(
        token_ids=hypothesis.token_ids,
        cumulative_logprob=hypothesis.cumulative_logprob,
        finish_reason=finish_reason_to_proto(hypothesis.finish_reason),
        logprobs=map(token_logprobs_to_proto, hypothesis.logprobs),
    )


def hypothesis_from_proto(message: scheduler_pb2.Hypothesis) -> Hypothesis:
    """Return a text that a beam search has found."""
    return Hypothesis(
        tuple(message.token_ids),
        message.cumulative_logprob,
        finish_reason_from_proto(message.finish_reason),
        tuple(map(token_logprobs_from_proto, message.logprobs)),
    )


_REASONS: "dict[type[RefusalError], scheduler_pb2.RefusalReason.ValueType]" = {
    OverloadedError: scheduler_pb2.REFUSAL_REASON_QUEUE_FULL,
    InvalidRequestError: scheduler_pb2.REFUSAL_REASON_INVALID,
    TooLargeError: scheduler_pb2.REFUSAL_REASON_TOO_LARGE,
    DrainingError: scheduler_pb2.REFUSAL_REASON_DRAINING,
    DeadlineExceededError: scheduler_pb2.REFUSAL_REASON_DEADLINE_EXCEEDED,
    QuarantinedError: scheduler_pb2.REFUSAL_REASON_QUARANTINED,
    UnreachableDeadlineError: scheduler_pb2.REFUSAL_REASON_DEADLINE_UNREACHABLE,
    QuotaExceededError: scheduler_pb2.REFUSAL_REASON_QUOTA_EXCEEDED,
}
_ERRORS = {reason: kind for kind, reason in _REASONS.items()}


def refused_to_proto(refused: Refused) -> scheduler_pb2.Refused:
    """Return the message of a refusal."""
    error = refused.error
    message = scheduler_pb2.Refused(
        request_number=refused.request_number, reason=_REASONS[type(error)], message=error.message
    )
    if isinstance(error, OverloadedError):
        message.retry_after_ms = error.retry_after_ms
    elif isinstance(error, InvalidRequestError):
        message.field, message.message = error.field, error.description
    return message


def refused_from_proto(message: scheduler_pb2.Refused) -> Refused:
    """Return the refusal of a message; a reason that is unknown here reads as INVALID."""
    kind = _ERRORS.get(message.reason, InvalidRequestError)
    error: RefusalError
    if issubclass(kind, OverloadedError):
        error = kind(message.message, message.retry_after_ms)
    elif issubclass(kind, InvalidRequestError):
        error = kind(message.field, message.message)
    else:
        error = kind(message.message)
    return Refused(message.request_number, error)


# ---------------------------------------------------------------- from workers


def announcement_to_proto(announcement: Announcement) -> scheduler_pb2.AnnounceWorkerRequest:
    """Return the message of an announcement."""
    return scheduler_pb2.AnnounceWorkerRequest(**fields_of(announcement))


def announcement_from_proto(message: scheduler_pb2.AnnounceWorkerRequest) -> Announcement:
    """Return the announcement of a message."""
    return from_fields(Announcement, message)
