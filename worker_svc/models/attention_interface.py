"""transformers' attention interface on the paged kernels.

Models of `transformers` look up their attention function by name and pass it queries, keys and
values, already rotated. The function registered here writes keys and values into the paged cache
and attends over all of the context.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from worker_svc.layers.attention import AttentionMetadata, PagedAttention

NAME = "quire_paged"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """How a layer called the interface.

    Attributes:
        layer_index: of the calling module; None if it has none.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: features of a query and a key.
        value_dim: features of a value.
        unserved: names of arguments that change the result in ways the kernels do not support.
    """

    layer_index: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    unserved: tuple[str, ...]


_metadata: ContextVar[AttentionMetadata] = ContextVar("attention metadata of the step")
_calls: ContextVar[list[AttentionCall] | None] = ContextVar("recorded calls", default=None)

# Tensors or numbers that, if given, bias or change the logits.
_CHANGES_RESULT = ("position_bias", "sinks", "attn_bias", "alibi", "head_mask")


@contextmanager
def attending(metadata: AttentionMetadata) -> Iterator[None]:
    """Make attention that is called in the block use the caches of a step."""
    token = _metadata.set(metadata)
    try:
        yield
    finally:
        _metadata.reset(token)


@contextmanager
def recording() -> Iterator[list[AttentionCall]]:
    """Record how attention is called in the block, and compute nothing."""
    calls: list[AttentionCall] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for a layer of `transformers`.

    Mutates: the caches of the step.

    Args:
        module: of the layer; has its index.
        query: [1, heads, rows, head_dim].
        key: [1, kv_heads, rows, head_dim].
        value: [1, kv_heads, rows, up to head_dim].
        attention_mask: None; causality comes from the step's metadata.
        scaling: of the dot products; None for 1 / sqrt(head_dim).
        sliding_window: tokens that are seen; None for all.
        softcap: see PagedAttention; None for none.
        s_aux: [heads], sinks: see PagedAttention; None for none.
        others: of no effect on inference, or recorded as not served.

    Returns:
        Attended values [1, rows, heads, features of a value], and None for the weights.
    """
    _, num_heads, num_rows, head_dim = query.shape
    layer_index = getattr(module, "layer_idx", None)
    calls = _calls.get()
    if calls is not None:
        unserved = [name for name in _CHANGES_RESULT if others.get(name) is not None]
        if attention_mask is not None:
            unserved.append("attention_mask")
        calls.append(
            AttentionCall(
                layer_index,
                num_heads,
                key.shape[1],
                head_dim,
                value.shape[-1],
                tuple(unserved),
            )
        )
        return query.new_zeros(1, num_rows, num_heads, value.shape[-1]), None
    attention = PagedAttention(
        layer_index or 0,
        head_dim**-0.5 if scaling is None else float(scaling),
        sliding_window,
        soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.float().contiguous(),
    )
    value_dim = value.shape[-1]
    # Zeros behind its features leave a value's own as they are.
    value = functional.pad(value, (0, head_dim - value_dim))
    query, key, value = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    out = attention(query, key, value, _metadata.get())
    return out.view(1, num_rows, num_heads, head_dim)[..., :value_dim], None


def register() -> None:
    """Register the interface with `transformers` under NAME."""
    function: Callable[..., Any] = paged_attention
    AttentionInterface.register(NAME, function)
