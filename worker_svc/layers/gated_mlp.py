"""The gated MLP. Source: Shazeer, 2020, GLU Variants Improve Transformer."""

import torch

from worker_svc.layers.activation import gated_activation
from worker_svc.layers.linear import LinearSource, MergedColumnParallelLinear, RowParallelLinear
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


class GatedMLP:
    """down(act(gate(x)) * up(x)), gate and up computed as one.

    Args:
        weights: scope of the layers.
        hidden_size: features of x.
        intermediate_size: features of gate and up.
        parallel: the group.
        activation: Hugging Face name of the gate's activation.
        bias: whether the layers have one.
        is_fused: whether gate and up are stored as one layer, gate_up_proj.

    Raises:
        ModelLoadError: a tensor is missing or misshapen, or the ranks cannot share a layer.
    """

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        intermediate_size: int,
        parallel: ParallelGroup,
        *,
        activation: str,
        bias: bool = False,
        is_fused: bool = False,
    ) -> None:
        own = parallel.part("intermediate_size", intermediate_size)
        if is_fused:
            own_up = range(intermediate_size + own.start, intermediate_size + own.stop)
            sources = (
                LinearSource("gate_up_proj", 2 * intermediate_size, own),
                LinearSource("gate_up_proj", 2 * intermediate_size, own_up),
            )
        else:
            sources = (
                LinearSource("gate_proj", intermediate_size, own),
                LinearSource("up_proj", intermediate_size, own),
            )
        self._gate_up_proj = MergedColumnParallelLinear(weights, sources, hidden_size, bias=bias)
        self._activation = gated_activation(activation)
        self._down_proj = RowParallelLinear(
            weights, "down_proj", intermediate_size, hidden_size, parallel, bias=bias
        )

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, hidden_size].

        Args:
            hidden: [rows, hidden_size].
        """
        return self._down_proj(self._activation(self._gate_up_proj(hidden)))
