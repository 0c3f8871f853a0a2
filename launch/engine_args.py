"""Arguments of an engine as vLLM's users write them: a dataclass, a parser, and configs."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from launch.cluster.config import ClusterConfig
from launch.vllm.keywords import TRANSLATED
from launch.vllm.table import (
    ABSENT,
    ALWAYS,
    LISTS,
    NO_EFFECT,
    OF_SERVERS,
    ONE_WAY,
    SHORT,
    SWITCHES,
)
from launch.vllm.values import count, from_json
from quire.contract.engine_options import GIB, EngineKeywords
from quire.contract.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model an engine has; attributes as of EngineArgs."""

    model: str | Path | None
    tokenizer: str | Path | None
    tokenizer_mode: str
    download_dir: str | Path | None
    dtype: str
    seed: int | None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What its cache is.

    Attributes:
        block_size: tokens of a block.
        gpu_memory_utilization: share of a GPU's memory for weights, activations and cache; None for
            0.9, and on CPUs for a share of what is free.
        swap_space_bytes: host memory for preempted requests; None for a share of what is free.
    """

    block_size: int
    gpu_memory_utilization: float | None
    swap_space_bytes: int | None


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many workers share the model; attributes as of EngineArgs."""

    pipeline_parallel_size: int
    tensor_parallel_size: int
    worker_use_ray: bool

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return self.pipeline_parallel_size * self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How large steps are; attributes as of EngineArgs."""

    max_num_batched_tokens: int
    max_num_seqs: int


def _count(text: str) -> int:
    try:
        return count("count", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.message.partition(": ")[2]) from None


def _length(text: str) -> int | None:
    return None if text in ("auto", "-1") else _count(text)


def _object(text: str) -> dict[str, Any]:
    try:
        found = from_json("object", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.message.partition(": ")[2]) from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be an object, got {text!r}")
    return found


_SHORT = {**SHORT, "-tp": "tensor-parallel-size"}
# Keywords that `LLM` has beside those of engines.
_OF_MODELS = ("revision", "tokenizer_revision", "hf_overrides")
_KINDS = {"max_model_len": _length, "hf_overrides": _object}


def _of_vllm() -> list[str]:
    """Return the names of vLLM's options of engines that are none here."""
    names = {*ABSENT, *ALWAYS, *NO_EFFECT, *ONE_WAY, *TRANSLATED} - OF_SERVERS
    return sorted(name.replace("-", "_") for name in names)


def _how(name: str, annotation: str) -> dict[str, Any]:
    """Return how a parser reads an option.

    Args:
        name: of the option.
        annotation: of a keyword, as text; "" for an option of vLLM's alone.
    """
    option = name.replace("_", "-")
    if "bool" in annotation or (not annotation and option in SWITCHES):
        return {"action": argparse.BooleanOptionalAction}
    if not annotation and option in LISTS:
        return {"nargs": "+"}
    kinds = {"int": _count, "float": float}
    found = [kind for word, kind in kinds.items() if word in annotation]
    return {"type": _KINDS.get(name) or (found[0] if found and "str" not in annotation else str)}


@dataclass(init=False)
class EngineArgs:
    """Arguments of an engine: those of vLLM 0.1.2 in its order, and the keywords of `LLM`.

    What is not given is left to `LLM`. Defaults are those of `quire serve`: its options know them.

    Attributes:
        given: by name.
    """

    model: str | Path | None = None
    tokenizer: str | Path | None = None
    tokenizer_mode: str = "auto"
    download_dir: str | Path | None = None
    use_np_weights: bool = False
    use_dummy_weights: bool = False
    dtype: str = ClusterConfig.dtype
    seed: int | None = None
    worker_use_ray: bool = False
    pipeline_parallel_size: int = 1
    tensor_parallel_size: int = ClusterConfig.tensor_parallel_size
    block_size: int = ClusterConfig.block_size
    swap_space: float | None = ClusterConfig.swap_space
    gpu_memory_utilization: float | None = ClusterConfig.gpu_memory_utilization
    max_num_batched_tokens: int = ClusterConfig.max_num_batched_tokens
    max_num_seqs: int = ClusterConfig.max_num_seqs
    disable_log_stats: bool = False

    def __init__(self, *values: Any, **keywords: Any) -> None:
        """Take arguments by position, in the order of the fields, and by name."""
        names = [each.name for each in fields(self)]
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__}: at most {len(names)} arguments by position")
        by_place = dict(zip(names, values, strict=False))
        if twice := by_place.keys() & keywords.keys():
            raise TypeError(f"{type(self).__name__}: {min(twice)} is given twice")
        self.given: dict[str, Any] = {}
        for name, value in (by_place | keywords).items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Take an argument, now or later."""
        object.__setattr__(self, name, value)
        if name != "given":
            self.given[name] = value

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add an option for each field, keyword of `LLM`, and option of vLLM's engines; return it.

        Names may have underscores.
        """
        for name, annotation in cls._annotations().items():
            option = name.replace("_", "-")
            flags = dict.fromkeys([f"--{option}", f"--{name}"])
            short = [word for word, meant in _SHORT.items() if meant == option]
            parser.add_argument(*flags, *short, dest=name, default=None, **_how(name, annotation))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the arguments that a parser has found; other attributes are passed over."""
        names = cls._annotations().keys()
        found = {name: value for name, value in vars(args).items() if name in names}
        return cls(**{name: value for name, value in found.items() if value is not None})

    @classmethod
    def _annotations(cls) -> dict[str, str]:
        """Return the type of each argument as text; that of one of vLLM's alone is empty."""
        found = dict.fromkeys([*_of_vllm(), *_OF_MODELS], "")
        found |= {name: str(kind) for name, kind in EngineKeywords.__annotations__.items()}
        return found | {each.name: str(each.type) for each in fields(cls)}

    def create_engine_configs(
        self,
    ) -> tuple[ModelConfig, CacheConfig, ParallelConfig, SchedulerConfig]:
        """Return what the arguments say of model, cache, workers and steps.

        Raises:
            ConfigError: pipeline_parallel_size is another than 1.
        """
        if self.pipeline_parallel_size != 1:
            raise ConfigError(
                f"pipeline_parallel_size: must be 1, got {self.pipeline_parallel_size}"
            )
        swap = None if self.swap_space is None else int(self.swap_space * GIB)
        return (
            ModelConfig(
                *(self.model, self.tokenizer or self.model, self.tokenizer_mode),
                *(self.download_dir, self.dtype, self.seed),
            ),
            CacheConfig(self.block_size, self.gpu_memory_utilization, swap),
            ParallelConfig(
                self.pipeline_parallel_size, self.tensor_parallel_size, self.worker_use_ray
            ),
            SchedulerConfig(self.max_num_batched_tokens, self.max_num_seqs),
        )


@dataclass(init=False)
class AsyncEngineArgs(EngineArgs):
    """Arguments of an AsyncLLMEngine."""

    engine_use_ray: bool = False
    disable_log_requests: bool = False
