"""What the scheduler of a cell asks of its workers before the first step, and what they answer."""

from dataclasses import dataclass

from quire.contract.engine_options import (
    DTYPES,
    KV_CACHE_DTYPES,
    LOAD_FORMATS,
    CacheOptions,
    LoadOptions,
)
from quire.contract.errors import ConfigError, InvalidRequestError, ModelLoadError
from quire.contract.outputs import ModelInfo

DEFAULT_DISTRIBUTED_TIMEOUT_S = LoadOptions.distributed_timeout_s


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker is and holds.

    Attributes:
        version: of the software; scheduler and workers must agree.
        device: "cpu", "cuda:0" ...
        isa: instruction set the kernels run on.
        model: None until one is loaded.
        num_blocks: 0 until the cache is allocated.
        weight_bytes: memory of this rank's slice of the weights.
        epoch: highest one seen; 0 for none yet.
        scheduler_name: of the scheduler that has an Execute stream open; "" for none.
    """

    version: str
    device: str
    isa: str
    model: ModelInfo | None
    num_blocks: int
    weight_bytes: int
    epoch: int = 0
    scheduler_name: str = ""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Which slice of which model, and how.

    Attributes:
        model: path of a Hugging Face model directory.
        dtype: "auto" takes what the model's configuration says, else one of DTYPES.
        max_model_len: limit on tokens of one sequence; None takes the model's own.
        tensor_parallel_rank: of this worker.
        tensor_parallel_size: number of workers that share each layer.
        load_format: "safetensors", or "dummy" for weights that are made up: only the configuration
            is read.
        invariant: whether a token's bits depend neither on the number of ranks nor, on a GPU
            either, on its company; on the CPU they never depend on that.
        kv_cache_dtype: of the paged cache: "auto" for the model's own, "fp8" on a GPU or "int8" on
            the CPU.

    Raises:
        ModelLoadError: a value is out of bounds; names field, limit and value.
    """

    model: str
    dtype: str = "auto"
    max_model_len: int | None = None
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    load_format: str = "safetensors"
    invariant: bool = False
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("load_format", self.load_format, LOAD_FORMATS)
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ModelLoadError(f"max_model_len: must be at least 1, got {self.max_model_len}")
        if not 0 <= self.tensor_parallel_rank < self.tensor_parallel_size:
            raise ModelLoadError(
                f"tensor_parallel_rank: must be in [0, tensor_parallel_size), got "
                f"{self.tensor_parallel_rank} of {self.tensor_parallel_size}"
            )


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ModelLoadError(f"{field}: must be one of {', '.join(choices)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where, when and how long the ranks of a group meet.

    Attributes:
        address: "host:port" where rank 0 awaits the others; unused by a group of one.
        host: address of this worker, as the others reach it.
        epoch: ranks meet only those of the same one.
        timeout_s: how long to wait for the others, to meet and in every exchange.

    Raises:
        InvalidRequestError: the timeout is out of bounds.
    """

    address: str = ""
    host: str = "127.0.0.1"
    epoch: int = 0
    timeout_s: float = DEFAULT_DISTRIBUTED_TIMEOUT_S

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 3600:
            raise InvalidRequestError(
                "distributed_timeout_ms", f"must be in [1, 3600000], got {1e3 * self.timeout_s:g}"
            )


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """An order to load a model.

    Attributes:
        spec: which slice of which model, and how.
        served_model_name: name that requests use; "" for the model's path.
        meeting: where to meet the other ranks; its epoch is that of the order.
        scheduler_name: of the scheduler, the same whenever it starts again.
    """

    spec: LoadSpec
    served_model_name: str
    meeting: Meeting
    scheduler_name: str


@dataclass(frozen=True, slots=True)
class LoadResponse:
    """What a worker has loaded.

    Attributes:
        model: what it turned out to be.
        checkpoint_digest: of the model directory: ranks whose digests differ were given different
            models.
    """

    model: ModelInfo
    checkpoint_digest: bytes


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """The largest step and what the operator wants to spend on cache.

    Attributes:
        block_size: tokens of a block.
        max_num_batched_tokens: most tokens of a step.
        max_num_seqs: most sequences of a step.
        kv_cache_memory_bytes: of cache to use; None takes a share of the memory.
        gpu_memory_utilization: share of a GPU's memory for weights, activations and cache together.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = CacheOptions.gpu_memory_utilization

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1:
            raise ConfigError(
                f"max_num_batched_tokens: must be at least 1, got {self.max_num_batched_tokens}"
            )
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs: must be at least 1, got {self.max_num_seqs}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization: must be in (0, 1], got {self.gpu_memory_utilization}"
            )


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """How much cache fits.

    Attributes:
        num_blocks: blocks that fit.
        block_bytes: bytes of one, over all layers of this rank.
    """

    num_blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The cache to allocate.

    Attributes:
        block_size: tokens of a block.
        num_blocks: of the cache.
        swap_space_bytes: host memory for swapped blocks; None takes a share of what is free.
        max_num_seqs: most sequences of a step; a GPU needs it to capture steps as graphs. None
            captures none.
        enforce_eager: capture no graphs.
    """

    block_size: int
    num_blocks: int
    swap_space_bytes: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False


@dataclass(frozen=True, slots=True)
class HostCache:
    """Where swapped blocks go.

    Attributes:
        num_blocks: that fit there.
        block_us: measured time to move one block one way; 0 without blocks.
    """

    num_blocks: int
    block_us: float
