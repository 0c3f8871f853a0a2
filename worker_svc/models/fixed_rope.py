"""Rotary frequencies of a model of `transformers`, made independent of what runs together.

Where rotary embedding is stretched by "dynamic" or "longrope", `transformers` takes the frequencies
from the largest position of the whole call. In a batch of many sequences that is a neighbour's. So,
as in native families, the length limit decides, once.
"""

from typing import Any

import torch

FIXED = "fixed"
"""A kind for which `transformers` leaves the frequencies as they are."""


def fix_rope_frequencies(model: Any, max_model_len: int) -> None:
    """Take the frequencies of the longest sequence for all.

    Mutates: the modules of rotary embedding in `model` (a `PreTrainedModel`).
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and _depends_on_length(kinds):
            _compute_at(module, max_model_len)
            module.rope_type = FIXED
        elif isinstance(kinds, dict):
            for layer_type, kind in kinds.items():
                if _depends_on_length(kind):
                    _compute_at(module, max_model_len, layer_type=layer_type)
                    kinds[layer_type] = FIXED


def _depends_on_length(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"


@torch.inference_mode()
def _compute_at(module: Any, max_model_len: int, **layer_type: str) -> None:
    """Have the module choose its frequencies, as it does for a sequence of this length."""
    last = torch.tensor([[max_model_len - 1]])
    module(torch.zeros(1, 1, 1), last, **layer_type)
