"""The MLP without a gate."""

import torch

from worker_svc.layers.activation import plain_activation
from worker_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


class PlainMLP:
    """out(act(in(x))).

    Args:
        weights: scope of both layers.
        names: of the layer in and the layer out.
        hidden_size: features of the input and of the result.
        intermediate_size: features between the two.
        activation: Hugging Face name.
        parallel: the group.
        bias: whether both layers have one.
        transposed: whether their weights are stored as [in, out].
    """

    def __init__(
        self,
        weights: Weights,
        names: tuple[str, str],
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        parallel: ParallelGroup,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> None:
        name_in, name_out = names
        self._in = ColumnParallelLinear(
            weights,
            name_in,
            hidden_size,
            intermediate_size,
            parallel,
            bias=bias,
            transposed=transposed,
        )
        self._activation = plain_activation(activation)
        self._out = RowParallelLinear(
            weights,
            name_out,
            intermediate_size,
            hidden_size,
            parallel,
            bias=bias,
            transposed=transposed,
        )

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, hidden_size].

        Args:
            hidden: [rows, hidden_size].
        """
        return self._out(self._activation(self._in(hidden)))
