"""A cost model computed from data sheets, for models and GPUs that are not at hand."""

from dataclasses import dataclass

from simulator.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one cell, from their data sheets.

    Attributes:
        name: for reports.
        num_gpus: GPUs that share the model.
        bytes_per_s: memory bandwidth of each.
        flops_per_s: of the dense layers' type, each.
        attention_flops_per_s: of the cache's type, each.
        host_bytes_per_s: between each GPU and its host, one way.
        memory_efficiency: share of the bandwidth that kernels reach.
        compute_efficiency: share of the operations that kernels reach.
        all_reduce_us: of a small one over all GPUs.
    """

    name: str
    num_gpus: int
    bytes_per_s: float
    flops_per_s: float
    attention_flops_per_s: float
    host_bytes_per_s: float
    memory_efficiency: float = 0.75
    compute_efficiency: float = 0.5
    all_reduce_us: float = 20.0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A dense decoder, as far as its speed depends on it.

    Attributes:
        name: for reports.
        num_parameters: all are read in a step, and multiplied once for each token.
        bytes_per_parameter: of the weights.
        num_layers: with two all-reduces each.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_size: elements of each.
        bytes_per_cached_element: of keys and values.
    """

    name: str
    num_parameters: float
    bytes_per_parameter: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    bytes_per_cached_element: float

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token, over all layers."""
        elements = 2 * self.num_layers * self.num_kv_heads * self.head_size
        return elements * self.bytes_per_cached_element


H100_TIMES_8 = Hardware("8 H100 SXM", 8, 3.35e12, 1.979e15, 0.989e15, 50e9)
LLAMA_405B_FP8 = ModelSize("Llama-3.1-405B, FP8 weights", 405e9, 1, 126, 128, 8, 128, 2)


def roofline(model: ModelSize, hardware: Hardware, block_size: int) -> CostModel:
    """Return the least times of a step, if every kernel reaches the assumed efficiencies.

    Dense layers take as long as reading the weights or multiplying, whichever is longer. Attention
    of decoding sequences is bound by reading the cache, that of prompts by multiplying.

    Args:
        model: to be run.
        hardware: of one cell.
        block_size: tokens of a cache block, for what moving one takes.
    """
    bandwidth = hardware.num_gpus * hardware.bytes_per_s * hardware.memory_efficiency
    compute = hardware.num_gpus * hardware.compute_efficiency
    cached = model.cache_bytes_per_token
    # A multiplication and an addition for each element of a key, and of a value.
    flops_per_pair = 4 * model.num_layers * model.num_heads * model.head_size
    weights_bytes = model.num_parameters * model.bytes_per_parameter
    host_bandwidth = hardware.num_gpus * hardware.host_bytes_per_s
    return CostModel(
        name=f"{model.name}, on {hardware.name}",
        source="computed from data sheets, not measured",
        base_us=2 * model.num_layers * hardware.all_reduce_us,
        weights_us=1e6 * weights_bytes / bandwidth,
        token_us=1e6 * 2 * model.num_parameters / (compute * hardware.flops_per_s),
        sequence_us=2.0,
        context_us=1e6 * cached / bandwidth,
        pair_us=1e6 * flops_per_pair / (compute * hardware.attention_flops_per_s),
        moved_block_us=1e6 * cached * block_size / host_bandwidth,
    )


def cache_blocks(model: ModelSize, hardware: Hardware, block_size: int, gpu_bytes: float) -> int:
    """Return the blocks that fit beside the weights and a tenth of the memory for activations."""
    left = 0.9 * hardware.num_gpus * gpu_bytes - model.num_parameters * model.bytes_per_parameter
    return int(left / (model.cache_bytes_per_token * block_size))
