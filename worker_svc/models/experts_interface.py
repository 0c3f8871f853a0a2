"""transformers' experts interface on our layers.

Models of `transformers` look up the function that computes a layer's experts by name, and pass it
rows, the experts of each and their weights. The one registered here multiplies each expert's rows
by layers whose rows do not depend on each other, and adds up a row's experts in float32, in the
order of the experts, whatever other rows there are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from worker_svc.layers.device_linear import make_linear
from worker_svc.models.rowwise import num_real

NAME = "quire_rowwise"
_LAYERS = "_quire_layers"


class _Layers:
    """A projection of all experts of a layer.

    Mutates: `module`, whose weight has no numbers from now on.

    Args:
        module: of the experts.
        name: of the projection's weight.
    """

    def __init__(self, module: Any, name: str) -> None:
        weight: torch.Tensor = getattr(module, name)
        biases = getattr(module, f"{name}_bias") if module.has_bias else [None] * len(weight)
        self._linears = [
            make_linear((each.t() if module.is_transposed else each).contiguous(), bias)
            for each, bias in zip(weight, biases, strict=True)
        ]
        self._out_features = weight.shape[2 if module.is_transposed else 1]
        setattr(module, name, nn.Parameter(weight.to("meta"), requires_grad=False))

    def __len__(self) -> int:
        """Return the number of experts."""
        return len(self._linears)

    def __call__(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return the products of each expert's rows, [rows, out_features]; zeros behind them.

        Args:
            rows: [rows, in_features], those of the first expert, those of the second, and so on.
            counts: of rows of each expert.
        """
        out = rows.new_zeros(len(rows), self._out_features)
        start = 0
        for linear, count in zip(self._linears, counts, strict=True):
            if count:
                out[start : start + count] = linear(rows[start : start + count])
            start += count
        return out


def replace_experts(model: nn.Module) -> None:
    """Let the experts of all layers be computed here; their weights are packed and let go.

    Experts that do not go through the interface stay as they are.

    Mutates: model.
    """
    ExpertsInterface.register(NAME, rowwise_experts)
    module: Any
    for module in model.modules():
        if hasattr(module, "has_gate") and hasattr(module, "_is_expert_parallel"):
            up = _Layers(module, "gate_up_proj" if module.has_gate else "up_proj")
            setattr(module, _LAYERS, (up, _Layers(module, "down_proj")))
            module.config._experts_implementation = NAME


def rowwise_experts(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Compute the experts of a layer of `transformers`.

    Args:
        module: of the experts.
        hidden_states: [rows, hidden_size].
        top_k_index: [rows, k] int64, experts of each row; others than the layer has add nothing.
        top_k_weights: [rows, k], what the results of each row are multiplied by.

    Returns:
        [rows, hidden_size]; zeros in rows of padding.
    """
    real, num_rows = num_real(hidden_states.shape), len(hidden_states)
    up, down = getattr(module, _LAYERS)
    index, order = top_k_index.sort(dim=1, stable=True)
    weights = top_k_weights.gather(1, order).float()
    index[real:] = len(up)
    # All pairs of rows and experts, those of an expert together; as many as rows times k, so that
    # what torch computes element by element has whole vectors of all of them.
    experts, pairs = index.flatten().sort(stable=True)
    counts = torch.bincount(experts, minlength=len(up))[: len(up)].tolist()
    rows = hidden_states.index_select(0, pairs // index.shape[1])
    inner = up(rows, counts)
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    outer = down(inner, counts)
    if module.has_post_expert_norm:
        outer = module.post_expert_norm(outer)
    products = torch.empty(outer.shape, dtype=torch.float32, device=outer.device)
    products[pairs] = outer.float() * weights.flatten()[pairs].unsqueeze(1)
    by_row = products.view(num_rows, index.shape[1], -1)
    total = by_row[:, 0]
    for place in range(1, index.shape[1]):
        total = total + by_row[:, place]
    return total.to(hidden_states.dtype)
