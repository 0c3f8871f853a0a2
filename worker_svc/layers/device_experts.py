"""The experts of a layer on a GPU: all of them in a few launches, chosen without the host."""

from dataclasses import dataclass
from typing import Self

import torch

from worker_svc import ops
from worker_svc.layers.activation import Activation
from worker_svc.layers.expert_routing import ExpertRouting
from worker_svc.layers.expert_weights import ExpertWeights

# What the sums of experts' outputs take at once; rows beyond that wait for their turn.
_MAX_SUM_BYTES = 256 << 20
_TILE_ROWS = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class _Order:
    """Where the pairs of some rows and their experts lie; see ops.order_experts."""

    weights: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor
    tiles: torch.Tensor
    tile_rows: int

    @classmethod
    def of(cls, routing: ExpertRouting, logits: torch.Tensor, bias: torch.Tensor | None) -> Self:
        """Route rows; see ExpertRouting.pick."""
        num_rows, num_experts = logits.shape
        top_k = routing.top_k
        num_pairs = num_rows * top_k
        weights = logits.new_empty(num_rows, top_k, dtype=torch.float32)
        experts = logits.new_empty(num_rows, top_k, dtype=torch.int32)
        routing.route_on_device(weights, experts, logits, bias)
        # By sizes alone: how rows are spread is not known here. It changes no bit.
        of_expert = num_pairs / min(num_pairs, num_experts)
        tile_rows = next((rows for rows in _TILE_ROWS if of_expert <= rows), _TILE_ROWS[-1])
        num_tiles = ops.max_tiles(num_pairs, num_experts, tile_rows)
        order = cls(
            weights,
            positions=torch.empty_like(experts),
            rows=experts.new_empty(num_pairs),
            offsets=experts.new_empty(num_experts + 1),
            tiles=experts.new_empty(num_tiles, 2),
            tile_rows=tile_rows,
        )
        ops.order_experts(
            *(order.positions, order.rows, order.offsets, order.tiles), experts, tile_rows
        )
        return order

    def linear(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        weights: ExpertWeights,
        rows: torch.Tensor | None,
        total_features: int,
    ) -> torch.Tensor:
        """Return `out`, [parts, pairs, features], filled; see ops.expert_linear."""
        order = self.offsets, self.tiles, self.tile_rows
        weights.multiply(out, x, rows, order, total_features)
        return out


class DeviceExperts:
    """This rank's share of all experts of a layer.

    Args:
        gate_up: [experts, 2 * this rank's features inside, hidden_size].
        down: [experts, hidden_size, this rank's features inside], for that many parts.
        num_ranks: that share each expert.
        num_parts: that this rank's features inside are cut into.
        activation: of the gates.
        routing: how experts are picked.
    """

    def __init__(
        self,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        num_ranks: int,
        num_parts: int,
        activation: Activation,
        routing: ExpertRouting,
    ) -> None:
        self._gate_up, self._down = gate_up, down
        self._num_ranks = num_ranks
        self._num_parts = num_parts
        self._activation = activation
        self._routing = routing
        row_bytes = num_parts * routing.top_k * down.out_features * 4
        self._rows_at_once = max(_TILE_ROWS[-1], _MAX_SUM_BYTES // row_bytes)

    def __call__(
        self,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return this rank's sum over the experts of each row, [rows, hidden_size].

        Args:
            hidden: [rows, hidden_size].
            logits: [rows, experts] of the router.
            bias: [experts] float32 of the choice; None for none.
            dtype: of the result; that of `hidden`, or float32 for sums of other ranks.
        """
        out = torch.empty_like(hidden, dtype=dtype)
        for first in range(0, len(hidden), self._rows_at_once):
            some = slice(first, first + self._rows_at_once)
            order = _Order.of(self._routing, logits[some], bias)
            self._add_up(out[some], hidden[some], order)
        return out

    def _add_up(self, out: torch.Tensor, hidden: torch.Tensor, order: _Order) -> None:
        num_pairs = len(order.rows)
        inside, size = self._gate_up.out_features, self._down.out_features
        both = hidden.new_empty(1, num_pairs, inside)
        order.linear(both, hidden, self._gate_up, order.rows, inside * self._num_ranks)
        inner = self._activation(both[0])
        sums = hidden.new_empty(self._num_parts, num_pairs, size, dtype=torch.float32)
        order.linear(sums, inner, self._down, None, size)
        ops.combine_experts(out, sums, order.weights, order.positions)
