"""The MLP without a gate."""

import torch

from worker_svc.layers.activation import plain_activation
from worker_svc.layers.decoder_stack import DecoderConfig
from worker_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from worker_svc.loading.weights import Weights
from worker_svc.parallel.group import ParallelGroup


class PlainMLP:
    """out(act(in(x))).

    Args:
        weights: scope of both layers.
        names: of the layer in and the layer out.
        config: of the model, for the sizes and the activation.
        parallel: the group.
        bias: whether both layers have one.
        transposed: whether their weights are stored as [in, out].
    """

    def __init__(
        self,
        weights: Weights,
        names: tuple[str, str],
        config: DecoderConfig,
        parallel: ParallelGroup,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> None:
        name_in, name_out = names
        size, inner = config.hidden_size, config.intermediate_size
        self._in = ColumnParallelLinear(
            weights,
            name_in,
            size,
            inner,
            parallel,
            bias=bias,
            transposed=transposed,
        )
        self._activation = plain_activation(config.activation)
        self._out = RowParallelLinear(
            weights,
            name_out,
            inner,
            size,
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
