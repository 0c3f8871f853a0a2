"""transformers' attention interface on the paged kernels.

Models of `transformers` look up their attention function by name and pass it queries, keys and
values, already rotated. The function registered here writes keys and values into the paged cache
and attends over all of the context.

What a layer sees is said by its mask, which `transformers` makes apart from attention: some models
never pass on the window of theirs. So masks are recorded before a model is served, each as the
rule that it is made of.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from worker_svc.layers.attention import AttentionMetadata, PagedAttention

NAME = "quire_paged"
RECORDING = "quire_recording"
"""The name while calls are recorded."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """How a layer called the interface.

    Attributes:
        layer_index: of the calling module; None if it has none.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: features of a query and a key.
        value_dim: features of a value.
        window: tokens that are seen; None for all.
        unserved: names of arguments that change the result in ways the kernels do not support.
    """

    layer_index: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    unserved: tuple[str, ...]


@dataclass(slots=True)
class _Recording:
    """What is recorded.

    Attributes:
        length: of the longest sequence, in tokens.
        calls: of attention.
    """

    length: int
    calls: list[AttentionCall]


@dataclass(frozen=True, slots=True)
class _Mask:
    """Takes the place of a mask, which models cut and move, and hand to their layers.

    Attributes:
        is_window: whether every token sees those before it, or the last of them, and itself.
        window: how many it sees at most; None for all.
    """

    is_window: bool
    window: int | None

    def __getitem__(self, _: object) -> "_Mask":
        """Return it all: of a mask, models cut what is too long."""
        return self

    def to(self, *_: object, **__: object) -> "_Mask":
        """Return the mask."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raise: what a model makes of its mask by itself is not seen here."""
        raise AttributeError(f"it does more with its mask than to hand it to attention: .{name}")


_step: ContextVar[tuple[AttentionMetadata, Sequence[int | None]]] = ContextVar("attention's step")
_recording: ContextVar[_Recording] = ContextVar("recorded calls")

_OBEYED = frozenset({"scaling", "softcap", "s_aux"})
# Arguments that change no result, beside those that are obeyed. Any other that is given may.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
# Arguments that change none if they have this value.
_NEUTRAL = {"dropout": 0.0, "is_causal": True}


@contextmanager
def attending(metadata: AttentionMetadata, windows: Sequence[int | None]) -> Iterator[None]:
    """Make attention that is called in the block use the caches of a step.

    Args:
        metadata: of the step.
        windows: of each layer, tokens that are seen; None for all.
    """
    token = _step.set((metadata, windows))
    try:
        yield
    finally:
        _step.reset(token)


@contextmanager
def recording(length: int) -> Iterator[list[AttentionCall]]:
    """Record how attention is called in the block, under the name RECORDING; compute nothing.

    Args:
        length: of the longest sequence that will be served, in tokens.
    """
    recorded = _Recording(length, [])
    token = _recording.set(recorded)
    try:
        yield recorded.calls
    finally:
        _recording.reset(token)


def record_mask(mask_function: Callable[..., torch.Tensor], **_: Any) -> _Mask:
    """Return what a mask says of sequences as long as any that will be served.

    Args:
        mask_function: from a sequence, a head, a query's position and those of keys to whether the
            query sees them.
    """
    length, nothing = _recording.get().length, torch.tensor(0)
    keys = torch.arange(length)

    def seen_by(query: int) -> torch.Tensor:
        return mask_function(nothing, nothing, torch.tensor(query), keys).expand(length)

    count = int(seen_by(length - 1).sum())
    is_window = all(
        torch.equal(seen_by(query), (keys <= query) & (keys > query - count))
        for query in {0, count - 1, count, count + 1, length // 2, length - 1} & {*range(length)}
    )
    return _Mask(is_window, None if count == length else count)


def record_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: _Mask | torch.Tensor | None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Record how a layer calls attention; see paged_attention.

    Mutates: the recorded calls.
    """
    recorded = _recording.get()
    unserved = [
        name
        for name, given in others.items()
        if given is not None
        and name not in _OBEYED | _WITHOUT_EFFECT
        and not (name in _NEUTRAL and given == _NEUTRAL[name])
    ]
    # Of a layer that has a mask, what is passed beside it is not what `transformers` obeys.
    window = sliding_window
    if isinstance(attention_mask, _Mask):
        window = attention_mask.window
        if not attention_mask.is_window:
            unserved.append("a mask that is not a window's")
    elif attention_mask is not None:
        unserved.append("attention_mask")
    _, num_heads, num_rows, head_dim = query.shape
    recorded.calls.append(
        AttentionCall(
            getattr(module, "layer_idx", None),
            num_heads,
            key.shape[1],
            head_dim,
            value.shape[-1],
            window,
            tuple(unserved),
        )
    )
    return query.new_zeros(1, num_rows, num_heads, value.shape[-1]), None


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
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
        softcap: see PagedAttention; None for none.
        s_aux: [heads], sinks: see PagedAttention; None for none.
        others: of no effect, as has been recorded; the window, too, for that of the
            layer's mask counts.

    Returns:
        Attended values [1, rows, heads, features of a value], and None for the weights.
    """
    _, num_heads, num_rows, head_dim = query.shape
    metadata, windows = _step.get()
    layer_index: int = module.layer_idx  # type: ignore[assignment]
    attention = PagedAttention(
        layer_index,
        head_dim**-0.5 if scaling is None else float(scaling),
        windows[layer_index],
        soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.float().contiguous(),
    )
    value_dim = value.shape[-1]
    # Zeros behind its features leave a value's own as they are.
    value = functional.pad(value, (0, head_dim - value_dim))
    query, key, value = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    out = attention(query, key, value, metadata)
    return out.view(1, num_rows, num_heads, head_dim)[..., :value_dim], None


def register() -> None:
    """Register the interface with `transformers` under NAME and RECORDING."""
    functions: dict[str, Callable[..., Any]] = {NAME: paged_attention, RECORDING: record_call}
    for name, function in functions.items():
        AttentionInterface.register(name, function)
    record: Any = record_mask
    AttentionMaskInterface.register(RECORDING, record)
