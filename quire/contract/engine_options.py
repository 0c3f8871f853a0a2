"""The options of an engine: what `quire serve`, `quire scheduler` and `LLM` can be asked for.

An option is written here and read where it is used, nowhere else. One that a worker reads is sent
to it: it has a field in worker.proto, too. Names follow vLLM.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, Options, option

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("safetensors", "dummy")
KV_CACHE_DTYPES = ("auto", "fp8", "int8")
QUANTIZATIONS = ("none", "w8a8", "w8", "w4", "stored")
LARGEST_INT32 = 2**31 - 1
GIB = 2**30


class SpeculationMode(StrEnum):
    """Where drafts of the next tokens come from: nowhere, the sequence itself, or a draft model."""

    OFF = "off"
    PROMPT_LOOKUP = "prompt-lookup"
    DRAFT_MODEL = "draft-model"


class PreemptionMode(StrEnum):
    """What becomes of a preempted group's blocks: moved, dropped, or whichever is cheaper."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where a worker computes."""

    PANEL = "Device"

    device: str = option(
        "auto",
        "Where workers compute: 'cpu', 'cuda' or 'cuda:N'. 'auto' takes a GPU if there is one.",
    )
    num_threads: int | None = option(
        None,
        "Threads of each worker.",
        bounds=Bounds(1, 1024),
        shown_default="the cores of this machine",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # "auto:N" is the GPU of a rank, if there is one.
        if re.fullmatch(r"cpu|(cuda|auto)(:[0-9]+)?", self.device) is None:
            raise ConfigError(f"device: must be auto, cpu, cuda or cuda:N, got {self.device!r}")


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Options):
    """How workers load a model."""

    PANEL = "Model"

    dtype: str = option("auto", "'auto' takes the model's own type.", choices=DTYPES)
    load_format: str = option(
        "safetensors", "'dummy' makes weights up, for benchmarks.", choices=LOAD_FORMATS
    )
    kv_cache_dtype: str = option(
        "auto",
        "What the KV cache holds: 'auto' the model's own type; a byte for each element, so that "
        "twice as much fits, as 'fp8' on a GPU or 'int8' on the CPU.",
        choices=KV_CACHE_DTYPES,
    )
    quantization: str = option(
        "none",
        "How attention and MLPs hold their weights: 'w8a8' as int8, with activations in int8 as "
        "well; 'w8' and 'w4' in 8 and 4 bits, activations in the model's type; 'stored' as the "
        "integers that a checkpoint of GPTQ, AWQ or compressed-tensors has, or its float8.",
        choices=QUANTIZATIONS,
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of one sequence, prompt and output.",
        bounds=Bounds(2, LARGEST_INT32),
        shown_default="what the model says and the cache holds",
    )
    invariant: bool = option(
        False,
        "On GPUs, layers whose bits depend neither on the number of workers nor on the batch, so "
        "that nothing changes an answer; slower. On CPUs it is always so.",
    )
    draft_model: str = option(
        "",
        "Directory of a smaller model with the same tokenizer, for --speculation draft-model; "
        "loaded whole by the first worker.",
        metavar="DIRECTORY",
        shown_default="none",
    )


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options):
    """How large steps and cache of a worker are."""

    PANEL = "Memory and steps"

    block_size: int = option(
        16,
        "Tokens in a block of the KV cache; workers take powers of two from 8.",
        bounds=Bounds(1, 256),
    )
    max_num_seqs: int = option(256, "Most sequences running at once.", bounds=Bounds(1, 2**16))
    max_num_batched_tokens: int = option(
        2048, "Most tokens computed in one step.", bounds=Bounds(1, 2**20)
    )
    enforce_eager: bool = option(False, "No graphs of small steps: less memory, slower decoding.")
    gpu_memory_utilization: float | None = option(
        None,
        "Share of a GPU's memory for weights, activations and KV cache together; on CPUs of the "
        "memory that is free at the start, for all workers of a machine.",
        bounds=Bounds(0, 1, excludes_low=True),
        shown_default="0.9 of a GPU's; on CPUs a quarter of what is free, 4 GiB at most, as cache",
    )
    kv_cache_gib: float | None = option(
        None,
        "Memory for the KV cache of each worker.",
        unit="GiB",
        bounds=Bounds(0, LARGEST_INT32, excludes_low=True),
        shown_default="a share of what is free",
    )
    swap_space: float | None = option(
        None,
        "Host memory for preempted requests, for each worker.",
        unit="GiB",
        bounds=Bounds(0, LARGEST_INT32),
        shown_default="a share of what is free",
    )

    @property
    def kv_cache_memory_bytes(self) -> int | None:
        """Memory for the KV cache; None leaves it to the worker."""
        return None if self.kv_cache_gib is None else max(1, int(self.kv_cache_gib * GIB))

    @property
    def swap_space_bytes(self) -> int | None:
        """Host memory for preempted requests; None leaves it to the worker."""
        return None if self.swap_space is None else int(self.swap_space * GIB)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(LoadOptions, CacheOptions):
    """What a scheduler can be asked for, and what it asks of its workers.

    Raises:
        ConfigError: a value is out of bounds; names field, limit and value.
    """

    PANEL = "Scheduling"

    served_model_name: str = option(
        "", "Name that requests use.", shown_default="name of the directory"
    )
    served_model_alias: tuple[str, ...] = option(
        (), "Another name that requests may use; repeat.", metavar="NAME", shown_default="none"
    )
    seed: int | None = option(
        None,
        "Draw the seeds of requests that bring none from this one: the same requests, in the same "
        "order, have the same answers.",
        bounds=Bounds(0, 2**53 - 1),
        shown_default="drawn",
    )
    max_waiting: int = option(
        4096,
        "Most requests waiting; more are refused until some have run.",
        bounds=Bounds(1, 2**20),
    )
    max_waiting_tokens: int = option(
        2**24,
        "Most tokens of the prompts that wait; more are refused until some have run.",
        bounds=Bounds(1, 2**40),
    )
    max_steps_in_flight: int = option(
        2,
        "2 sends a step before the result of the one before it is back, so that workers need not "
        "wait; 1 does not. The tokens are the same.",
        bounds=Bounds(1, 2),
    )
    enable_prefix_caching: bool = option(
        True, "Let requests share the cache blocks of a prefix that was computed before."
    )
    num_gpu_blocks_override: int | None = option(
        None,
        "Blocks of the KV cache, whatever profiling says.",
        bounds=Bounds(1, LARGEST_INT32),
        shown_default="profiled",
    )
    preemption_mode: str = option(
        PreemptionMode.AUTO,
        "What becomes of the cache of a preempted request: 'swap' moves it to host memory, "
        "'recompute' drops it, 'auto' does what is cheaper.",
        choices=PreemptionMode,
    )
    speculation: str = option(
        SpeculationMode.OFF,
        "Draft the next tokens of a sequence and check several in one step, as far as it is "
        "measured to be faster: from what followed the same tokens before, where the sequence "
        "repeats itself ('prompt-lookup'), or with a smaller model ('draft-model'); on GPUs with "
        "--invariant only. The tokens are the same.",
        choices=SpeculationMode,
    )
    max_draft_tokens: int = option(
        8, "Most tokens drafted for a sequence in one step.", bounds=Bounds(1, 64)
    )
    priority_ageing_s: float = option(
        60.0,
        "A request may be overtaken by those that come up to so many seconds later, for each level "
        "of priority between them.",
        unit="seconds",
        bounds=Bounds(0, 1_000_000),
    )
    distributed_timeout_s: float = option(
        30.0,
        "How long workers that share a model wait for each other in any exchange.",
        unit="seconds",
        bounds=Bounds(1, 3600),
    )
    record: str = option(
        "",
        "Record the orders and results of every step, for `quire replay`: what was computed when, "
        "without tokens and never with text.",
        metavar="DIRECTORY",
        shown_default="none",
    )
    record_tokens: bool = option(
        False,
        "Record tokens, sampling parameters and log-probabilities, too, so that steps can be "
        "replayed: anyone with these files and the tokenizer can read prompts and answers.",
    )
    record_mb: int = option(
        256,
        "Most that recorded files take; the oldest are deleted.",
        unit="MiB",
        bounds=Bounds(16, 2**20),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.record_tokens and not self.record:
            raise ConfigError("record: must name a directory with record_tokens, got none")
        if (self.speculation == SpeculationMode.DRAFT_MODEL) != bool(self.draft_model):
            raise ConfigError(
                "draft_model: must be given with speculation draft-model and with no other, "
                f"got {self.draft_model!r} with {self.speculation}"
            )


class EngineKeywords(TypedDict, total=False):
    """Keywords of `LLM`: the options above with their types, for editors."""

    tensor_parallel_size: int
    device: str
    num_threads: int | None
    dtype: str
    load_format: str
    kv_cache_dtype: str
    quantization: str
    max_model_len: int | None
    invariant: bool
    draft_model: str
    distributed_timeout_s: float
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool
    gpu_memory_utilization: float | None
    kv_cache_gib: float | None
    swap_space: float | None
    served_model_name: str
    served_model_alias: tuple[str, ...]
    max_waiting: int
    max_waiting_tokens: int
    max_steps_in_flight: int
    enable_prefix_caching: bool
    num_gpu_blocks_override: int | None
    preemption_mode: str
    speculation: str
    max_draft_tokens: int
    priority_ageing_s: float
    record: str
    record_tokens: bool
    record_mb: int
