"""Sparse mixture of experts: each token goes through the few MLPs that a router picks for it.

On a GPU the experts of a layer are computed together, and the host learns nothing of the router's
choice; on the CPU, and in w8a8 or quantised in float32, one after the other.

Source: Shazeer et al., 2017, "Outrageously Large Neural Networks", section 2.
"""

from dataclasses import dataclass

import torch

from worker_svc import ops
from worker_svc.layers.activation import gated_activation
from worker_svc.layers.device_experts import DeviceExperts
from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.layers.expert_weights import load_experts
from worker_svc.layers.linear import LinearSource, MergedColumnParallelLinear, ReplicatedLinear
from worker_svc.layers.partial_sums import PartialSums, add_up, own_parts
from worker_svc.layers.quantization import have_experts_kernels
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sizes and names of the experts.

    Attributes:
        routing: how they are picked.
        intermediate_size: features inside an expert.
        scope: name of the block within a layer.
        names: of an expert's gate, up and down projection.
        dense_layers: indices of layers that have one MLP instead.
        has_float_logits: whether the router's logits are float32, not rounded to the model's type.
        has_choice_bias: whether a bias is added to the scores of experts for the choice alone.
    """

    routing: ExpertRouting
    intermediate_size: int
    scope: str
    names: tuple[str, str, str]
    dense_layers: frozenset[int] = frozenset()
    has_float_logits: bool = False
    has_choice_bias: bool = False


def are_experts_on_device(config: MoEConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether layers built now leave the choice of experts on a device.

    Args:
        config: of the experts.
        device: of the layers.
        dtype: of the activations.
    """
    is_in_limits = (
        config.routing.num_experts <= ops.MAX_EXPERTS
        and config.routing.top_k <= ops.MAX_EXPERTS_OF_ROW
        and config.routing.num_groups <= ops.MAX_EXPERT_GROUPS
    )
    return device.type != "cpu" and have_experts_kernels(dtype) and is_in_limits


def _load_device_experts(
    config: MoEConfig,
    weights: Weights,
    hidden_size: int,
    parallel: ParallelGroup,
    activation: str,
) -> DeviceExperts:
    """Return this rank's share of all experts, each kind of their weights as one tensor."""
    gate, up, down = config.names
    inner, hidden = config.intermediate_size, range(hidden_size)
    own = parallel.part("intermediate size of an expert", inner)
    num_parts = own_parts(down, inner, parallel, weights.device)
    experts = [weights.scope(f"experts.{index}") for index in range(config.routing.num_experts)]
    shape = inner, hidden_size
    gate_up = [(f"{name}.weight", shape, (own, hidden)) for name in (gate, up)]
    downs = [(f"{down}.weight", (hidden_size, inner), (hidden, own))]
    return DeviceExperts(
        load_experts(experts, gate_up),
        load_experts(experts, downs, num_parts),
        parallel.size,
        num_parts,
        gated_activation(activation),
        config.routing,
    )


class _Expert:
    """This rank's share of one expert; the caller adds its outputs up over the ranks."""

    def __init__(
        self,
        config: MoEConfig,
        weights: Weights,
        hidden_size: int,
        parallel: ParallelGroup,
        activation: str,
    ) -> None:
        gate, up, down = config.names
        inner = config.intermediate_size
        own = parallel.part("intermediate size of an expert", inner)
        sources = LinearSource(gate, inner, own), LinearSource(up, inner, own)
        self._gate_up = MergedColumnParallelLinear(weights, sources, hidden_size, bias=False)
        self._activation = gated_activation(activation)
        shape = (hidden_size, inner)
        weight = weights.load(f"{down}.weight", shape, (range(hidden_size), own))
        self._down = PartialSums(down, weight, parallel, apart=True)

    @property
    def num_sums(self) -> int:
        return self._down.num_sums

    def __call__(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        return self._down(self._activation(self._gate_up(hidden)))


class SparseMoE:
    """Router and experts in the place of an MLP.

    A token's result does not depend on other tokens: the router and each expert work row by row,
    and the outputs of a token's experts are added up in the order of the experts, in float32.

    Args:
        config: of the experts.
        weights: scope of the layer.
        hidden_size: features of the residual stream.
        parallel: the group; each expert is cut over it.
        activation: Hugging Face name of the gates' activation.
    """

    def __init__(
        self,
        config: MoEConfig,
        weights: Weights,
        hidden_size: int,
        parallel: ParallelGroup,
        activation: str,
    ) -> None:
        block = weights.scope(config.scope)
        self._config = config
        self._parallel = parallel
        num_experts = config.routing.num_experts
        self._router = ReplicatedLinear(
            block,
            "gate",
            hidden_size,
            num_experts,
            bias=False,
            dtype=torch.float32 if config.has_float_logits else None,
        )
        self._choice_bias: torch.Tensor | None = None
        if config.has_choice_bias:
            wide = block.scope("gate").as_type(torch.float32)
            self._choice_bias = wide.load("e_score_correction_bias", (num_experts,))
        self._on_device: DeviceExperts | None = None
        self._experts: list[_Expert] = []
        if are_experts_on_device(config, weights.device, weights.dtype):
            self._on_device = _load_device_experts(config, block, hidden_size, parallel, activation)
            return
        self._experts = [
            _Expert(config, block.scope(f"experts.{index}"), hidden_size, parallel, activation)
            for index in range(num_experts)
        ]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, hidden_size].

        Args:
            hidden: [rows, hidden_size].
        """
        logits = self._router(hidden)
        if self._on_device is not None:
            # Rounded before the exchange, sums would depend on the number of ranks.
            dtype = hidden.dtype if self._parallel.size == 1 else torch.float32
            own = self._on_device(hidden, logits, self._choice_bias, dtype)
            return add_up([own], self._parallel, hidden.dtype)
        weights, picked = self._config.routing.pick(logits, self._choice_bias)
        # One sum for each part, so that the result does not depend on which rank holds which part.
        sums = [
            torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
            for _ in range(self._experts[0].num_sums)
        ]
        for index in sorted(set(picked.flatten().cpu().tolist())):
            rows, places = (picked == index).nonzero(as_tuple=True)
            outputs = self._experts[index](hidden.index_select(0, rows))
            for total, output in zip(sums, outputs, strict=True):
                total.index_add_(0, rows, output.float() * weights[rows, places].unsqueeze(1))
        return add_up(sums, self._parallel, hidden.dtype)
