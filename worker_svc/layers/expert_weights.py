"""The weights of all experts of a layer on a GPU: as they are, or packed in 8 or 4 bits."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from worker_svc import ops
from worker_svc.layers.grouped_linear import GroupedWeight
from worker_svc.layers.quantization import (
    are_stored_integers_kept,
    is_quantised,
    packed_for_device,
    whole_of,
)
from worker_svc.loading.weights import Weights

# A weight's name in the scope of an expert, its shape, and the part of it that is wanted.
Source = tuple[str, tuple[int, int], tuple[range, range]]


class ExpertWeights(Protocol):
    """[experts, out_features, in_features].

    Attributes:
        out_features: of each expert.
    """

    out_features: int

    def multiply(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        rows: torch.Tensor | None,
        order: tuple[torch.Tensor, torch.Tensor, int],
        total_features: int,
    ) -> None:
        """Fill `out` with the products of each expert's rows.

        Args:
            out: [parts, pairs, out_features]; as many parts as the weights were loaded for.
            x: see ops.expert_linear, as the rest.
            rows: of x.
            order: offsets, tiles, and rows of a tile.
            total_features: out_features over all ranks.
        """


class WholeExperts:
    """Weights in the type of the activations.

    Args:
        weight: [experts, out_features, in_features].
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.out_features = weight.shape[1]
        self._weight = weight

    def multiply(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        rows: torch.Tensor | None,
        order: tuple[torch.Tensor, torch.Tensor, int],
        total_features: int,
    ) -> None:
        """See ExpertWeights."""
        ops.expert_linear(out, x, self._weight, rows, *order, total_features)


class WeightOnlyExperts:
    """Weights of 8 or 4 bits, dequantised where they are multiplied.

    Args:
        packed: see ops.weight_only_experts.
        scales: see there.
        bits: 8 or 4.
        out_features: of each expert.
    """

    def __init__(
        self, packed: torch.Tensor, scales: torch.Tensor, bits: int, out_features: int
    ) -> None:
        self.out_features = out_features
        self._packed, self._scales = packed, scales
        self._bits = bits

    def multiply(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        rows: torch.Tensor | None,
        order: tuple[torch.Tensor, torch.Tensor, int],
        total_features: int,
    ) -> None:
        """See ExpertWeights."""
        ops.weight_only_experts(
            *(out, x, self._packed, self._scales, rows, *order, total_features, self._bits)
        )


def load_experts(
    experts: Sequence[Weights], sources: Sequence[Source], num_parts: int = 1
) -> ExpertWeights:
    """Return a weight of all experts, quantised as layers built now are.

    Args:
        experts: scope of each.
        sources: of an expert, stacked in order; of the same input features.
        num_parts: that the input features are cut into.

    Raises:
        ModelLoadError: a tensor is missing or misshapen, or no groups divide the parts.
    """
    features = sum(len(rows) for _, _, (rows, _) in sources)
    loaded = (_load(expert, sources) for expert in experts)
    if not are_stored_integers_kept():
        return _stacked(loaded, len(experts), features, num_parts)
    return _stacked(_alike(list(loaded)), len(experts), features, num_parts)


def _load(expert: Weights, sources: Sequence[Source]) -> torch.Tensor | GroupedWeight:
    """Return one expert's; as integers if that is asked for, and tensor cores multiply them."""
    if are_stored_integers_kept() and expert.dtype != torch.float32:
        integers = expert.load_grouped(sources)
        if integers is not None:
            return integers
    return torch.cat([expert.load(*source) for source in sources])


def _alike(
    weights: Sequence[torch.Tensor | GroupedWeight],
) -> Sequence[torch.Tensor] | Sequence[GroupedWeight]:
    """Return integers if all have them, of the same bits, in groups of the same size; or none."""
    integers = [each for each in weights if isinstance(each, GroupedWeight)]
    forms = {(each.bits, each.is_float) for each in integers}
    if len(integers) < len(weights) or len(forms) != 1:
        return [whole_of(each) for each in weights]
    size = min(each.group_size for each in integers)
    return [each.regrouped(size) for each in integers]


def _stacked(
    weights: Iterable[torch.Tensor | GroupedWeight],
    num_experts: int,
    out_features: int,
    num_parts: int,
) -> ExpertWeights:
    """Return them as one, each taken once: no more than one is held beside the result."""
    stacks: list[torch.Tensor] = []
    bits = None
    for index, weight in enumerate(weights):
        own: tuple[torch.Tensor, ...]
        if isinstance(weight, GroupedWeight) or is_quantised():
            packed, scales, bits = packed_for_device(weight, num_parts)
            own = packed, scales
        else:
            own = (weight,)
        if not stacks:
            stacks = [each.new_empty(num_experts, *each.shape) for each in own]
        for stack, each in zip(stacks, own, strict=True):
            stack[index] = each
    if bits is None:
        return WholeExperts(stacks[0])
    return WeightOnlyExperts(stacks[0], stacks[1], bits, out_features)
