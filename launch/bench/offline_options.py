"""Options of `quire bench throughput` and `latency`: those of an engine, and what it is to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.bench.dataset_options import COUNTS, LENGTHS, SEEDS, DatasetOptions
from launch.cluster.config import ClusterConfig
from quire.contract.engine_options import DeviceOptions, EngineKeywords, EngineOptions
from quire.contract.options import Bounds, defaults_of, option, same_option

ITERATIONS = Bounds(1, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class EngineUnderTest(EngineOptions, DeviceOptions):
    """The engine that is started, and where its result goes."""

    model: str | None = option(
        None,
        "Model directory, GGUF file, or name in Hugging Face's local cache.",
        metavar="MODEL",
        shown_default="the embedded demo model",
    )
    tensor_parallel_size: int = same_option(ClusterConfig, "tensor_parallel_size")
    n: int = option(1, "Outputs for each prompt.", bounds=Bounds(1, 64))
    output_json: Path | None = option(
        None, "Write the result here.", metavar="FILE", shown_default="none"
    )
    disable_tqdm: bool = option(False, "Show no progress bar.")

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of `LLM` that differ from its own defaults."""
        defaults = defaults_of(ClusterConfig)
        values = {name: getattr(self, name) for name in EngineKeywords.__annotations__}
        return {name: value for name, value in values.items() if value != defaults[name]}


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(DatasetOptions, EngineUnderTest):
    """What `quire bench throughput` is asked for.

    Raises:
        ConfigError: a value is out of bounds, or does not go with another.
    """


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(EngineUnderTest):
    """What `quire bench latency` is asked for.

    Raises:
        ConfigError: a value is out of bounds, or does not go with another.
    """

    input_len: int = option(32, "Tokens of a prompt.", bounds=LENGTHS)
    output_len: int = option(128, "Tokens of an answer.", bounds=LENGTHS)
    batch_size: int = option(8, "Prompts at once.", bounds=COUNTS)
    num_iters_warmup: int = option(
        10, "Batches before the measurement.", bounds=Bounds(0, ITERATIONS.high)
    )
    num_iters: int = option(30, "Batches that are measured.", bounds=ITERATIONS)
    use_beam_search: bool = option(False, "Search with n beams, instead of sampling.")
    seed: int = option(0, "Of the prompts.", bounds=SEEDS)
    # The same prompts come again and again, and are to be computed each time.
    enable_prefix_caching: bool = same_option(EngineOptions, "enable_prefix_caching", default=False)
