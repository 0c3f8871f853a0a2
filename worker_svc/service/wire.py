"""Between the worker's protobuf messages and its domain: the only module that knows both."""

from quire.v1 import worker_pb2
from quire.wire.common import model_info_to_proto
from worker_svc.cache.profile import DEFAULT_GPU_MEMORY_UTILIZATION, CacheProfile, ProfileSpec
from worker_svc.loading.loader import LoadSpec
from worker_svc.parallel.communicator import DEFAULT_TIMEOUT_S, Meeting
from worker_svc.worker import WorkerDescription


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
