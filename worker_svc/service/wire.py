"""Between the worker's protobuf messages and its domain: the only module that knows both."""

from collections.abc import Sequence

import numpy as np

from quire.contract.errors import InvalidRequestError
from quire.v1 import worker_pb2
from quire.wire.common import (
    model_info_to_proto,
    sampling_params_from_proto,
    token_logprobs_to_proto,
)
from worker_svc.cache.profile import DEFAULT_GPU_MEMORY_UTILIZATION, CacheProfile, ProfileSpec
from worker_svc.loading.loader import LoadSpec
from worker_svc.parallel.communicator import DEFAULT_TIMEOUT_S, Meeting
from worker_svc.steps.step import (
    IntArray,
    MirroredSequence,
    SchedulerOutputs,
    SequenceState,
    StepGap,
    StepResult,
)
from worker_svc.worker import WorkerDescription

_MAX_US = 2**32 - 1


def description_to_proto(
    description: WorkerDescription, epoch: int, scheduler_name: str
) -> worker_pb2.DescribeResponse:
    """Return the message of a worker's description, the highest epoch seen, and who drives it."""
    model = description.model
    return worker_pb2.DescribeResponse(
        version=description.version,
        device=description.device,
        isa=description.isa,
        epoch=epoch,
        model=None if model is None else model_info_to_proto(model),
        num_blocks=description.num_blocks,
        scheduler_name=scheduler_name,
        weight_bytes=description.weight_bytes,
    )


def meeting_from_proto(message: worker_pb2.LoadModelRequest) -> Meeting:
    """Read where the ranks meet; without a timeout, the default one.

    Raises:
        InvalidRequestError: the timeout is out of bounds.
    """
    timeout_s = message.distributed_timeout_ms / 1e3 or DEFAULT_TIMEOUT_S
    return Meeting(message.distributed_init_address, message.host, message.epoch, timeout_s)


def load_spec_from_proto(message: worker_pb2.LoadModelRequest) -> LoadSpec:
    """Read which slice of which model to load; a size of 0 reads as 1.

    Raises:
        ModelLoadError: a value is out of bounds.
    """
    return LoadSpec(
        model=message.model,
        dtype=message.dtype or "auto",
        max_model_len=message.max_model_len if message.HasField("max_model_len") else None,
        tensor_parallel_rank=message.tensor_parallel_rank,
        tensor_parallel_size=message.tensor_parallel_size or 1,
        load_format=message.load_format or "safetensors",
        invariant=message.invariant,
        kv_cache_dtype=message.kv_cache_dtype or "auto",
    )


def profile_spec_from_proto(message: worker_pb2.ProfileCacheRequest) -> ProfileSpec:
    """Read the largest step.

    Raises:
        ConfigError: a value is out of bounds.
    """
    return ProfileSpec(
        block_size=message.block_size,
        max_num_batched_tokens=message.max_num_batched_tokens,
        max_num_seqs=message.max_num_seqs,
        kv_cache_memory_bytes=(
            message.kv_cache_memory_bytes if message.HasField("kv_cache_memory_bytes") else None
        ),
        gpu_memory_utilization=(
            message.gpu_memory_utilization
            if message.HasField("gpu_memory_utilization")
            else DEFAULT_GPU_MEMORY_UTILIZATION
        ),
    )


def cache_profile_to_proto(profile: CacheProfile) -> worker_pb2.ProfileCacheResponse:
    """Return the message of a profile."""
    return worker_pb2.ProfileCacheResponse(
        num_blocks=profile.num_blocks, block_bytes=profile.block_bytes
    )


def scheduler_outputs_from_proto(message: worker_pb2.SchedulerOutputs) -> SchedulerOutputs:
    """Read the orders of a step.

    Raises:
        InvalidRequestError: block pairs or sampling parameters are malformed.
    """
    return SchedulerOutputs(
        epoch=message.epoch,
        step_id=message.step_id,
        released_sequence_ids=tuple(message.released_sequence_ids),
        new_sequences=tuple(_sequence_from_proto(state) for state in message.new_sequences),
        blocks_to_copy=_pairs("blocks_to_copy", message.blocks_to_copy),
        sequence_ids=tuple(message.sequence_ids),
        num_scheduled_tokens=np.array(message.num_scheduled_tokens, np.int64),
        num_new_blocks=np.array(message.num_new_blocks, np.int64),
        new_block_ids=np.array(message.new_block_ids, np.int64),
        forks=_pairs("forks", message.forks),
        chosen_tokens=_columns(
            "chosen_token_ids", message.chosen_sequence_ids, message.chosen_token_ids
        ),
        blocks_to_swap_out=_pairs("blocks_to_swap_out", message.blocks_to_swap_out),
        blocks_to_swap_in=_pairs("blocks_to_swap_in", message.blocks_to_swap_in),
        replaced_blocks=_columns(
            "replaced_block_ids",
            message.replaced_sequence_ids,
            message.replaced_places,
            message.replaced_block_ids,
        ),
        traceparent=message.traceparent,
    )


def _pairs(field: str, numbers: Sequence[int]) -> IntArray:
    """Return [n, 2] from numbers one after the other."""
    if len(numbers) % 2 != 0:
        raise InvalidRequestError(field, f"must hold pairs, got {len(numbers)} numbers")
    return np.array(numbers, np.int64).reshape(-1, 2)


def _columns(field: str, *columns: Sequence[int]) -> IntArray:
    """Return [n, number of columns] from parallel arrays."""
    if len({len(column) for column in columns}) > 1:
        raise InvalidRequestError(
            field, f"parallel arrays must be of one length, got {[len(each) for each in columns]}"
        )
    return np.array(columns, np.int64).T


def _sequence_from_proto(message: worker_pb2.SequenceState) -> SequenceState:
    return SequenceState(
        sequence_id=message.sequence_id,
        token_ids=np.array(message.token_ids, np.int64),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        block_ids=np.array(message.block_ids, np.int64),
        sampling_params=sampling_params_from_proto(message.sampling_params),
        sequence_index=message.sequence_index,
        num_candidates=message.num_candidates,
        traceparent=message.traceparent,
    )


def execute_response_to_proto(response: StepResult | StepGap) -> worker_pb2.ExecuteResponse:
    """Return the message of a step's result, or of a gap."""
    if isinstance(response, StepGap):
        gap = worker_pb2.StepGap(
            expected_step_id=response.expected_step_id,
            received_step_id=response.received_step_id,
        )
        return worker_pb2.ExecuteResponse(gap=gap)
    outcome = response.outcome
    result = worker_pb2.StepResult(
        epoch=response.epoch,
        step_id=response.step_id,
        sequence_ids=outcome.sequence_ids,
        token_ids=outcome.token_ids,
        failed_sequence_ids=outcome.failed_sequence_ids,
        model_us=min(outcome.model_us, _MAX_US),
        sample_us=min(outcome.sample_us, _MAX_US),
        worker_us=min(response.worker_us, _MAX_US),
        logprobs=map(token_logprobs_to_proto, outcome.logprobs),
        swap_us=min(outcome.swap_us, _MAX_US),
        prompt_logprobs=[
            worker_pb2.SequencePromptLogprobs(
                sequence_id=each.sequence_id,
                first_position=each.first_position,
                logprobs=map(token_logprobs_to_proto, each.logprobs),
            )
            for each in outcome.prompt_logprobs
        ],
    )
    return worker_pb2.ExecuteResponse(result=result)


def mirror_to_proto(sequences: list[MirroredSequence]) -> worker_pb2.MirrorResponse:
    """Return the message of the sequences a worker holds."""
    return worker_pb2.MirrorResponse(
        sequences=[
            worker_pb2.MirroredSequence(
                sequence_id=sequence.sequence_id,
                num_tokens=sequence.num_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=sequence.block_ids,
            )
            for sequence in sequences
        ]
    )
