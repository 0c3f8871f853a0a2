"""Between protobuf messages and domain objects: the only place here that knows both."""

from collections.abc import Iterable
from dataclasses import dataclass

from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError
from quire.contract.outputs import CellState, Hypothesis, ModelInfo
from quire.contract.sampling_params import SamplingParams
from quire.v1 import common_pb2, scheduler_pb2, worker_pb2
from quire.wire.common import (
    cell_state_to_proto,
    finish_reason_to_proto,
    model_info_to_proto,
    sampling_params_from_proto,
    time_account_to_proto,
    token_logprobs_from_proto,
    token_logprobs_to_proto,
)
from scheduler_svc.blocks.prefix_digest import DigestDelta
from scheduler_svc.policy.step import PromptLogprobs, SchedulerOutputs, SequenceState, StepResult
from scheduler_svc.sessions.session import Admitted, Refused, SessionEvent, StepOutputs, Submission

# ---------------------------------------------------------------- worker.proto


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a worker says about a step.

    Attributes:
        epoch: of the orders it obeyed.
        step_id: the step.
        result: what was sampled.
        model_us: time of the forward pass.
        sample_us: time of sampling.
        worker_us: time its model's thread spent on the step.
        swap_us: time it took to move blocks, beside the model.
    """

    epoch: int
    step_id: int
    result: StepResult
    model_us: int
    sample_us: int
    worker_us: int
    swap_us: int


def execute_request_to_proto(
    epoch: int, step_id: int, outputs: SchedulerOutputs, traceparent: str = ""
) -> worker_pb2.ExecuteRequest:
    """Return the message that orders a step."""
    return worker_pb2.ExecuteRequest(
        scheduler_outputs=worker_pb2.SchedulerOutputs(
            epoch=epoch,
            step_id=step_id,
            released_sequence_ids=outputs.released_sequence_ids,
            new_sequences=[_sequence_state_to_proto(state) for state in outputs.new_sequences],
            blocks_to_copy=_flat(outputs.blocks_to_copy),
            sequence_ids=outputs.sequence_ids,
            num_scheduled_tokens=outputs.num_scheduled_tokens,
            num_new_blocks=outputs.num_new_blocks,
            new_block_ids=outputs.new_block_ids,
            forks=_flat(outputs.forks),
            chosen_sequence_ids=[sequence_id for sequence_id, _ in outputs.chosen_tokens],
            chosen_token_ids=[token_id for _, token_id in outputs.chosen_tokens],
            blocks_to_swap_out=_flat(outputs.blocks_to_swap_out),
            blocks_to_swap_in=_flat(outputs.blocks_to_swap_in),
            replaced_sequence_ids=[sequence_id for sequence_id, _, _ in outputs.replaced_blocks],
            replaced_places=[place for _, place, _ in outputs.replaced_blocks],
            replaced_block_ids=[block_id for _, _, block_id in outputs.replaced_blocks],
            traceparent=traceparent,
        )
    )


def _flat(pairs: list[tuple[int, int]]) -> list[int]:
    return [number for pair in pairs for number in pair]


def step_report_from_proto(message: worker_pb2.StepResult) -> StepReport:
    """Return the report of a message."""
    return StepReport(
        epoch=message.epoch,
        step_id=message.step_id,
        result=StepResult(
            sequence_ids=list(message.sequence_ids),
            token_ids=list(message.token_ids),
            failed_sequence_ids=list(message.failed_sequence_ids),
            logprobs=list(map(token_logprobs_from_proto, message.logprobs)),
            prompt_logprobs=[
                PromptLogprobs(
                    each.sequence_id,
                    each.first_position,
                    list(map(token_logprobs_from_proto, each.logprobs)),
                )
                for each in message.prompt_logprobs
            ],
        ),
        model_us=message.model_us,
        sample_us=message.sample_us,
        worker_us=message.worker_us,
        swap_us=message.swap_us,
    )


def _sequence_state_to_proto(state: SequenceState) -> worker_pb2.SequenceState:
    return worker_pb2.SequenceState(
        sequence_id=state.sequence_id,
        token_ids=state.token_ids,
        num_computed_tokens=state.num_computed_tokens,
        block_ids=state.block_ids,
        sampling_params=_worker_params_to_proto(state.sampling_params),
        sequence_index=state.sequence_index,
        num_prompt_tokens=state.num_prompt_tokens,
        num_candidates=state.num_candidates,
        traceparent=state.traceparent,
    )


def _worker_params_to_proto(params: SamplingParams) -> common_pb2.SamplingParams:
    """Return what a sampler reads; the other fields stay with router and scheduler."""
    message = common_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias,
        allowed_token_ids=params.allowed_token_ids,
        bad_words_token_ids=[
            common_pb2.TokenSequence(token_ids=ids) for ids in params.bad_words_token_ids
        ],
        # Beams report what the search goes by, which has these in it.
        logprobs=None if params.use_beam_search else params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )
    if params.repetition_penalty != 1.0:
        message.repetition_penalty = params.repetition_penalty
    if params.min_tokens:
        # What must not be sampled before.
        message.min_tokens = params.min_tokens
        message.stop_token_ids.extend(params.stop_token_ids)
        message.ignore_eos = params.ignore_eos
    return message


# ---------------------------------------------------------------- scheduler.proto


def submission_from_proto(message: scheduler_pb2.SubmitRequest, max_tokens: int) -> Submission:
    """Read a submitted request.

    Args:
        message: trusted in nothing.
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
        cache_salt=message.cache_salt.encode(),
        traceparent=message.traceparent,
        wants_time_account=message.include_time_account,
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
                time_accounts=[
                    scheduler_pb2.RequestTimeAccount(
                        request_number=number, time_account=time_account_to_proto(account)
                    )
                    for number, account in event.time_accounts
                ],
            )
            return scheduler_pb2.SessionResponse(step_outputs=outputs)
        case CellState():
            return scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(event))
        case DigestDelta():
            delta = scheduler_pb2.PrefixDigestDelta(added=event.added, removed=event.removed)
            return scheduler_pb2.SessionResponse(prefix_digest_delta=delta)
        case Admitted():
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
