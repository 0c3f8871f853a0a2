"""To and from the messages of worker.proto."""

from collections.abc import Sequence, Sized
from itertools import chain

from quire.contract.engine_options import LoadOptions
from quire.contract.errors import InvalidRequestError
from quire.contract.options import values_of
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import (
    PromptLogprobs,
    SchedulerOutputs,
    SequenceState,
    StepGap,
    StepResult,
)
from quire.contract.workers import (
    DEFAULT_DISTRIBUTED_TIMEOUT_S,
    LoadRequest,
    LoadResponse,
    LoadSpec,
    Meeting,
    RunningStep,
    WorkerDescription,
)
from quire.v1 import common_pb2, worker_pb2
from quire.wire.common import (
    model_info_from_proto,
    model_info_to_proto,
    pooling_params_from_proto,
    pooling_params_to_proto,
    sampling_params_from_proto,
    structured_outputs_to_proto,
    token_logprobs_from_proto,
    token_logprobs_to_proto,
    token_sequences_to_proto,
)
from quire.wire.fields import fields_of, from_fields

_MAX_US = 2**32 - 1


# ---------------------------------------------------------------- before the first step


def description_to_proto(description: WorkerDescription) -> worker_pb2.DescribeResponse:
    """Return the message of a worker's description."""
    model = None if description.model is None else model_info_to_proto(description.model)
    return worker_pb2.DescribeResponse(**fields_of(description) | {"model": model})


def description_from_proto(message: worker_pb2.DescribeResponse) -> WorkerDescription:
    """Return the description of a message."""
    model = model_info_from_proto(message.model) if message.HasField("model") else None
    # Absent is not this release's, the default.
    version = message.protocol_version
    return from_fields(WorkerDescription, message, model=model, protocol_version=version)


def load_request_to_proto(request: LoadRequest) -> worker_pb2.LoadModelRequest:
    """Return the message of an order to load a model."""
    meeting, spec = request.meeting, request.spec
    return worker_pb2.LoadModelRequest(
        epoch=meeting.epoch,
        model=spec.model,
        served_model_name=request.served_model_name,
        tensor_parallel_rank=spec.tensor_parallel_rank,
        tensor_parallel_size=spec.tensor_parallel_size,
        distributed_init_address=meeting.address,
        host=meeting.host,
        distributed_timeout_ms=round(1e3 * meeting.timeout_s),
        distributed_secret=meeting.secret,
        scheduler_name=request.scheduler_name,
        options=worker_pb2.LoadOptions(**values_of(spec.options, LoadOptions)),
    )


def load_request_from_proto(message: worker_pb2.LoadModelRequest) -> LoadRequest:
    """Return the order of a message.

    Raises:
        ConfigError: an option is out of bounds.
        ModelLoadError: the rank is out of bounds.
        InvalidRequestError: the timeout is out of bounds.
    """
    timeout_s = message.distributed_timeout_ms / 1e3 or DEFAULT_DISTRIBUTED_TIMEOUT_S
    return LoadRequest(
        from_fields(LoadSpec, message, options=from_fields(LoadOptions, message.options)),
        message.served_model_name,
        Meeting(
            message.distributed_init_address,
            message.host,
            message.epoch,
            timeout_s,
            message.distributed_secret,
        ),
        message.scheduler_name,
    )


def load_response_to_proto(response: LoadResponse) -> worker_pb2.LoadModelResponse:
    """Return the message of what was loaded."""
    return worker_pb2.LoadModelResponse(
        model=model_info_to_proto(response.model), checkpoint_digest=response.checkpoint_digest
    )


def load_response_from_proto(message: worker_pb2.LoadModelResponse) -> LoadResponse:
    """Return what was loaded."""
    return LoadResponse(model_info_from_proto(message.model), message.checkpoint_digest)


def running_step_to_proto(step: RunningStep) -> worker_pb2.HeartbeatResponse:
    """Return the message of a step under way."""
    return worker_pb2.HeartbeatResponse(**fields_of(step))


def running_step_from_proto(message: worker_pb2.HeartbeatResponse) -> RunningStep:
    """Return the step of a message."""
    return from_fields(RunningStep, message)


# ---------------------------------------------------------------- SchedulerOutputs


def execute_request_to_proto(outputs: SchedulerOutputs) -> worker_pb2.ExecuteRequest:
    """Return the message that orders a step."""
    return worker_pb2.ExecuteRequest(scheduler_outputs=scheduler_outputs_to_proto(outputs))


def execute_request_from_proto(message: worker_pb2.ExecuteRequest) -> SchedulerOutputs:
    """Return the orders of a message.

    Raises:
        InvalidRequestError: see `scheduler_outputs_from_proto`.
    """
    return scheduler_outputs_from_proto(message.scheduler_outputs)


def scheduler_outputs_to_proto(outputs: SchedulerOutputs) -> worker_pb2.SchedulerOutputs:
    """Return the message of a step's orders."""
    return worker_pb2.SchedulerOutputs(
        epoch=outputs.epoch,
        step_id=outputs.step_id,
        released_sequence_ids=outputs.released_sequence_ids,
        new_sequences=map(sequence_state_to_proto, outputs.new_sequences),
        blocks_to_copy=chain.from_iterable(outputs.blocks_to_copy),
        sequence_ids=outputs.sequence_ids,
        num_scheduled_tokens=outputs.num_scheduled_tokens,
        num_new_blocks=outputs.num_new_blocks,
        new_block_ids=outputs.new_block_ids,
        num_draft_slots=outputs.num_draft_slots,
        forks=chain.from_iterable(outputs.forks),
        chosen_sequence_ids=[sequence_id for sequence_id, _ in outputs.chosen_tokens],
        chosen_token_ids=[token_id for _, token_id in outputs.chosen_tokens],
        blocks_to_swap_out=chain.from_iterable(outputs.blocks_to_swap_out),
        blocks_to_swap_in=chain.from_iterable(outputs.blocks_to_swap_in),
        replaced_sequence_ids=[sequence_id for sequence_id, _, _ in outputs.replaced_blocks],
        replaced_places=[place for _, place, _ in outputs.replaced_blocks],
        replaced_block_ids=[block_id for _, _, block_id in outputs.replaced_blocks],
        traceparent=outputs.traceparent,
    )


def scheduler_outputs_from_proto(message: worker_pb2.SchedulerOutputs) -> SchedulerOutputs:
    """Return the orders of a message.

    The long arrays stay the message's own: numpy reads those faster than lists.

    Raises:
        InvalidRequestError: arrays that belong together differ in length, or sampling parameters
            are out of bounds.
    """
    replaced = message.replaced_sequence_ids, message.replaced_places, message.replaced_block_ids
    check_parallel("chosen_token_ids", message.chosen_sequence_ids, message.chosen_token_ids)
    check_parallel("replaced_block_ids", *replaced)
    return SchedulerOutputs(
        epoch=message.epoch,
        step_id=message.step_id,
        released_sequence_ids=list(message.released_sequence_ids),
        new_sequences=[sequence_state_from_proto(state) for state in message.new_sequences],
        blocks_to_copy=_pairs("blocks_to_copy", message.blocks_to_copy),
        sequence_ids=list(message.sequence_ids),
        num_scheduled_tokens=message.num_scheduled_tokens,
        num_new_blocks=message.num_new_blocks,
        new_block_ids=message.new_block_ids,
        num_draft_slots=message.num_draft_slots,
        forks=_pairs("forks", message.forks),
        chosen_tokens=list(zip(message.chosen_sequence_ids, message.chosen_token_ids, strict=True)),
        blocks_to_swap_out=_pairs("blocks_to_swap_out", message.blocks_to_swap_out),
        blocks_to_swap_in=_pairs("blocks_to_swap_in", message.blocks_to_swap_in),
        replaced_blocks=list(zip(*replaced, strict=True)),
        traceparent=message.traceparent,
    )


def _pairs(field: str, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of numbers that stand one after the other."""
    if len(numbers) % 2:
        raise InvalidRequestError(field, f"must hold pairs, got {len(numbers)} numbers")
    return list(zip(numbers[::2], numbers[1::2], strict=True)) if numbers else []


def check_parallel(field: str, *columns: Sized) -> None:
    """Check that parallel arrays are of one length.

    Raises:
        InvalidRequestError: they are not.
    """
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise InvalidRequestError(field, f"parallel arrays must be of one length, got {lengths}")


def sequence_state_to_proto(state: SequenceState) -> worker_pb2.SequenceState:
    """Return the message of a sequence, with what a sampler reads of its parameters."""
    fields = fields_of(state)
    fields["sampling_params"] = _worker_params_to_proto(state.sampling_params)
    fields["pooling_params"] = pooling_params_to_proto(state.pooling_params)
    return worker_pb2.SequenceState(**fields)


def sequence_state_from_proto(message: worker_pb2.SequenceState) -> SequenceState:
    """Return the sequence of a message; the long arrays stay the message's own."""
    return from_fields(
        SequenceState,
        message,
        token_ids=message.token_ids,
        block_ids=message.block_ids,
        sampling_params=sampling_params_from_proto(message.sampling_params),
        pooling_params=pooling_params_from_proto(message),
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
        bad_words_token_ids=token_sequences_to_proto(params.bad_words_token_ids),
        # Beams report what the search goes by, which has these in it.
        logprobs=None if params.use_beam_search else params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        structured_outputs=structured_outputs_to_proto(params.structured_outputs),
    )
    if params.repetition_penalty != 1.0:
        message.repetition_penalty = params.repetition_penalty
    if params.min_tokens:
        # What must not be sampled before.
        message.min_tokens = params.min_tokens
        message.stop_token_ids.extend(params.stop_token_ids)
        message.ignore_eos = params.ignore_eos
    return message


# ---------------------------------------------------------------- StepResult


def execute_response_to_proto(response: StepResult | StepGap) -> worker_pb2.ExecuteResponse:
    """Return the message of a step's result, or of a gap."""
    if isinstance(response, StepGap):
        gap = worker_pb2.StepGap(
            expected_step_id=response.expected_step_id,
            received_step_id=response.received_step_id,
        )
        return worker_pb2.ExecuteResponse(gap=gap)
    return worker_pb2.ExecuteResponse(result=step_result_to_proto(response))


def execute_response_from_proto(message: worker_pb2.ExecuteResponse) -> StepResult | StepGap:
    """Return the result of a step, or the gap, that a message carries."""
    if message.WhichOneof("message") == "gap":
        return StepGap(message.gap.expected_step_id, message.gap.received_step_id)
    return step_result_from_proto(message.result)


def step_result_to_proto(result: StepResult) -> worker_pb2.StepResult:
    """Return the message of a step's result."""
    return worker_pb2.StepResult(
        epoch=result.epoch,
        step_id=result.step_id,
        sequence_ids=result.sequence_ids,
        token_ids=result.token_ids,
        failed_sequence_ids=result.failed_sequence_ids,
        model_us=min(result.model_us, _MAX_US),
        sample_us=min(result.sample_us, _MAX_US),
        worker_us=min(result.worker_us, _MAX_US),
        logprobs=map(token_logprobs_to_proto, result.logprobs),
        swap_us=min(result.swap_us, _MAX_US),
        prompt_logprobs=[
            worker_pb2.SequencePromptLogprobs(
                sequence_id=sequence_id,
                first_position=part.first_position,
                logprobs=map(token_logprobs_to_proto, part.logprobs),
            )
            for sequence_id, part in result.prompt_logprobs
        ],
        num_draft_tokens=result.num_draft_tokens,
        vectors=[
            worker_pb2.SequenceVector(sequence_id=sequence_id, vector=vector)
            for sequence_id, vector in result.vectors
        ],
        barred_sequence_ids=result.barred_sequence_ids,
    )


def step_result_from_proto(message: worker_pb2.StepResult) -> StepResult:
    """Return the result of a message."""
    return StepResult(
        sequence_ids=list(message.sequence_ids),
        token_ids=list(message.token_ids),
        failed_sequence_ids=list(message.failed_sequence_ids),
        logprobs=list(map(token_logprobs_from_proto, message.logprobs)),
        prompt_logprobs=[
            (
                each.sequence_id,
                PromptLogprobs(
                    each.first_position, list(map(token_logprobs_from_proto, each.logprobs))
                ),
            )
            for each in message.prompt_logprobs
        ],
        num_draft_tokens=list(message.num_draft_tokens),
        vectors=[(each.sequence_id, each.vector) for each in message.vectors],
        barred_sequence_ids=list(message.barred_sequence_ids),
        epoch=message.epoch,
        step_id=message.step_id,
        model_us=message.model_us,
        sample_us=message.sample_us,
        worker_us=message.worker_us,
        swap_us=message.swap_us,
    )
