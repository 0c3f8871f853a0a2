"""What the kernels should compute, in float64, and by how much rounding may move it."""

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# Largest relative error of rounding once to the dtype.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST_STEP = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


def assert_close(
    actual: Tensor,
    expected: Tensor,
    dtype: torch.dtype,
    ulps: float,
    magnitude: Tensor | None = None,
) -> None:
    """Compare a result of a kernel with the exact one.

    Args:
        actual: as the kernel wrote it.
        expected: float64.
        dtype: of the kernel's output.
        ulps: roundings to `dtype` that are allowed on the way to the result.
        magnitude: what the roundings are relative to: the sum of absolute terms where the result is
            a sum; by default the expected values.
    """
    relative_to = expected.abs() if magnitude is None else magnitude
    bound = ulps * UNIT_ROUNDOFF[dtype] * relative_to + SMALLEST_STEP[dtype]
    excess = (actual.double() - expected).abs() / bound
    worst = int(excess.argmax()) if excess.numel() else 0
    assert not excess.numel() or excess.max() <= 1, (
        f"element {worst}: {actual.flatten()[worst].item()} for "
        f"{expected.flatten()[worst].item()}, {excess.max().item():.2f} times what is allowed"
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first_position: int,
    scale: float,
    *,
    alibi_slopes: Tensor | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention of one sequence.

    Args:
        query: [T, H, D] of positions first_position onwards.
        key: [L, Hkv, D] of all positions.
        value: [L, Hkv, D].
        first_position: of query row 0.
        scale: of the dot products.
        alibi_slopes: [H].
        sliding_window: tokens a row sees, itself included.
        soft_cap: bound of the logits.
        sinks: [H], logits of a key without a value.

    Returns:
        Result and sum of its absolute terms, [T, H, D] float64 each.
    """
    group = query.shape[1] // key.shape[1]
    q = query.double().transpose(0, 1)
    k = key.double().repeat_interleave(group, 1).transpose(0, 1)
    v = value.double().repeat_interleave(group, 1).transpose(0, 1)
    logits = scale * q @ k.mT
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    distance = torch.arange(len(key))[None] - torch.arange(len(query))[:, None] - first_position
    if alibi_slopes is not None:
        logits = logits + alibi_slopes.double()[:, None, None] * distance
    hidden = distance > 0
    if sliding_window is not None:
        hidden |= distance <= -sliding_window
    logits = logits.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(-1, len(query), 1)
        logits = torch.cat([logits, sink], -1)
    probabilities = logits.softmax(-1)[..., : len(key)]
    return (probabilities @ v).transpose(0, 1), (probabilities @ v.abs()).transpose(0, 1)
