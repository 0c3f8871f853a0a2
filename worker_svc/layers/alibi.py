"""ALiBi: attention logits fall with the distance; each head has its own slope.

Source: Press et al., 2022, "Train Short, Test Long".
"""

import torch

from worker_svc.layers.linear import HeadShare

DEFAULT_BIAS_MAX = 8.0


def alibi_slopes(heads: HeadShare, bias_max: float = DEFAULT_BIAS_MAX) -> torch.Tensor:
    """Return the slopes of this rank's query heads, [heads] float32.

    If the number of heads is a power of two, head i, from 1, has the slope 2^(-bias_max i / heads).
    Otherwise the slopes are those of the next power of two: first every second one, then the rest.

    Args:
        heads: of the layer, and this rank's share of them.
        bias_max: exponent of the last slope.
    """
    power = 1 << (heads.total_heads - 1).bit_length()
    order = [*range(1, power + 1)]
    if power != heads.total_heads:
        order = order[1::2] + order[::2]
    slopes = [2.0 ** (-bias_max * step / power) for step in order]
    return torch.tensor(slopes[heads.heads.start : heads.heads.stop], dtype=torch.float32)
