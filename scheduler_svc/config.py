"""Settings of a scheduler."""

from dataclasses import dataclass

from quire.contract.addresses import MAX_RANKS, check_address, check_listening
from quire.contract.errors import ConfigError
from quire.observe.admin import AdminConfig
from quire.observe.log import LEVELS
from quire.rpc import TlsFiles
from scheduler_svc.sequences.preemption import PreemptionMode

LOAD_FORMATS = ("safetensors", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "fp8", "int8")
PREEMPTION_MODES = tuple(PreemptionMode)
MAX_AGEING_S = 1e6
MAX_DRAIN_TIMEOUT_S = 86_400


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What `quire scheduler` was asked for. Names follow vLLM.

    Attributes:
        model: model directory, as the workers see it.
        served_model_name: name that requests use.
        workers: addresses "host:port", in order of rank; their number is the tensor-parallel size.
        announced_ranks: the tensor-parallel size if the workers announce themselves; 0 if they are
            given by address.
        host: address to listen on, and no other.
        port: to listen on; 0 takes a free one.
        dtype: "auto", "float32", "bfloat16" or "float16".
        load_format: "safetensors", or "dummy" for weights that are made up.
        invariant: whether a token's bits depend neither on the number of workers nor, on GPUs too,
            on its company; at a cost.
        kv_cache_dtype: what the cache holds: "auto" for the model's type, "fp8" on GPUs, "int8" on
            CPUs.
        enforce_eager: whether workers on GPUs do without CUDA graphs.
        gpu_memory_utilization: share of a GPU's memory for weights, activations and cache together.
        distributed_timeout_s: how long workers wait for each other, to meet and in every exchange.
        block_size: slots of a cache block.
        num_gpu_blocks_override: blocks of the cache; None asks the workers to profile.
        kv_cache_memory_bytes: memory for the cache of each worker; None leaves it to the worker.
        max_model_len: tokens, prompt and output, of one sequence; None takes what the model allows
            and the cache can hold.
        max_num_batched_tokens: tokens of one step, over all sequences.
        max_num_seqs: sequences that run at once.
        max_waiting: requests that may wait; more are refused until some run.
        max_steps_in_flight: 2 sends a step before the result of the one before it is back, so that
            the workers need not wait; 1 does not. The tokens are the same.
        enable_prefix_caching: let requests share the cache blocks of a prefix computed before.
        watermark: share of the cache that admission leaves free.
        preemption_mode: what becomes of a preempted request's part of the cache: "swap" moves it to
            the host's memory, "recompute" drops it, "auto" does what is cheaper.
        swap_space_bytes: memory of each worker's host for preempted requests; None leaves it to the
            worker.
        priority_ageing_s: a request may be overtaken by one that comes so much later for each level
            of priority between them.
        drain_timeout_s: how long a cell that is taken out of service finishes what it has.
        admin: where metrics and probes are served; None serves none.
        log_level: least severe log line that is written.
        tls: certificate of this scheduler; None speaks in the clear, to workers too.
        insecure: whether to listen beyond this machine in the clear.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    model: str
    served_model_name: str
    workers: tuple[str, ...] = ("127.0.0.1:50053",)
    announced_ranks: int = 0
    host: str = "127.0.0.1"
    port: int = 50052
    dtype: str = "auto"
    load_format: str = "safetensors"
    invariant: bool = False
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    distributed_timeout_s: float = 30.0
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_waiting: int = 4096
    max_steps_in_flight: int = 2
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    preemption_mode: str = "auto"
    swap_space_bytes: int | None = None
    priority_ageing_s: float = 60.0
    drain_timeout_s: float = 30.0
    log_level: str = "info"
    tls: TlsFiles | None = None
    insecure: bool = False
    admin: AdminConfig | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model: a directory, got an empty name")
        if not self.served_model_name:
            raise ConfigError("served_model_name: at least 1 character, got 0")
        _check("announced_ranks", self.announced_ranks, 0, MAX_RANKS)
        if self.announced_ranks and self.workers:
            raise ConfigError(
                f"workers: none where {self.announced_ranks} announce themselves, "
                f"got {', '.join(self.workers)}"
            )
        if not self.announced_ranks and not 1 <= len(self.workers) <= MAX_RANKS:
            raise ConfigError(
                f"workers: must be in [1, {MAX_RANKS}] addresses, got {len(self.workers)}"
            )
        for address in self.workers:
            check_address("workers", address)
        if len(set(self.workers)) < len(self.workers):
            raise ConfigError(f"workers: each once, got {', '.join(self.workers)}")
        if not 1 <= self.distributed_timeout_s <= 3600:
            raise ConfigError(
                f"distributed_timeout_s: must be in [1, 3600], got {self.distributed_timeout_s:g}"
            )
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype: one of {', '.join(DTYPES)}, got {self.dtype}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(
                f"kv_cache_dtype: one of {', '.join(KV_CACHE_DTYPES)}, got {self.kv_cache_dtype}"
            )
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(
                f"load_format: one of {', '.join(LOAD_FORMATS)}, got {self.load_format}"
            )
        _check("port", self.port, 0, 65535)
        check_listening(self.host, self.tls is not None, self.insecure)
        _check("block_size", self.block_size, 1, 1024)
        _check("num_gpu_blocks_override", self.num_gpu_blocks_override, 1, 2**31 - 1)
        _check("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, 2**63 - 1)
        _check("max_model_len", self.max_model_len, 2, 2**31 - 1)
        _check("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**20)
        _check("max_num_seqs", self.max_num_seqs, 1, 2**16)
        _check("max_waiting", self.max_waiting, 1, 2**20)
        _check("max_steps_in_flight", self.max_steps_in_flight, 1, 2)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization: must be in (0, 1], got {self.gpu_memory_utilization}"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark: must be in [0, 1), got {self.watermark}")
        if self.preemption_mode not in PREEMPTION_MODES:
            raise ConfigError(
                f"preemption_mode: one of {', '.join(PREEMPTION_MODES)}, got {self.preemption_mode}"
            )
        _check("swap_space_bytes", self.swap_space_bytes, 0, 2**63 - 1)
        if not 0 <= self.priority_ageing_s <= MAX_AGEING_S:
            raise ConfigError(
                f"priority_ageing_s: must be in [0, {MAX_AGEING_S}], got {self.priority_ageing_s}"
            )
        if not 0 <= self.drain_timeout_s <= MAX_DRAIN_TIMEOUT_S:
            raise ConfigError(
                f"drain_timeout_s: must be in [0, {MAX_DRAIN_TIMEOUT_S}], "
                f"got {self.drain_timeout_s}"
            )
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level: one of {', '.join(LEVELS)}, got {self.log_level}")

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks over which the model is split."""
        return self.announced_ranks or len(self.workers)


def _check(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{field}: must be in [{low}, {high}], got {value}")
