"""Attention over the paged cache, the same call for decode, prefill and chunks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker_svc import ops
from worker_svc.layers.attention_plans import AttentionPlans
from worker_svc.layers.rotary import RotaryEmbedding


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of a layer.

    Attributes:
        keys: [num_blocks, kv_heads, block_size, row_size]; see ops for what rows are.
        values: the same; or the first elements of the rows of keys.
        key_scale: [kv_heads] float32 of float8 keys; None for 1, and of other types.
        value_scale: as key_scale.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None


@dataclass(slots=True)
class KVCaches:
    """Keys and values of every layer.

    Attributes:
        stored: per layer, the tensors that are its memory: keys and values (see LayerCache), or
            keys alone.
        value_size: elements of a value where values are the first of their keys; None where they
            are stored.
        scales: per layer, of keys and of values; None where there are none.
        before_layer: called with a layer's index before its caches are used; returns when no other
            thread writes to them.
    """

    stored: list[tuple[torch.Tensor, ...]]
    value_size: int | None = None
    scales: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    before_layer: Callable[[int], None] = lambda layer: None

    def layer(self, index: int) -> LayerCache:
        """Return the cache of a layer."""
        keys = self.stored[index][0]
        if self.value_size is not None:
            return LayerCache(keys, keys[..., : self.value_size])
        scales = (None, None) if self.scales is None else self.scales[index]
        return LayerCache(keys, self.stored[index][1], *scales)


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the tokens of a step are in the cache, common to all layers.

    Rows from `num_tokens` on are padding: they are computed and never read.

    Attributes:
        caches: of all layers.
        num_tokens: real rows of the batch.
        slot_mapping: [num_tokens] int64, block * block_size + offset of each token.
        block_tables: [num_sequences, max blocks] int32.
        seq_lens: [num_sequences] int32, keys of each including this step's.
        query_start_loc: [num_sequences + 1] int32, rows of each: a half-open interval.
        plans: how the work is split; None on the CPU, which needs no plan.
    """

    caches: KVCaches
    num_tokens: int
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    plans: AttentionPlans | None = None


class PagedAttention:
    """Writes keys and values of a layer into its cache, then attends over all of the context.

    Args:
        layer_index: which cache.
        scale: factor of the dot products.
        sliding_window: a token sees this many tokens, itself included; None sees all.
        alibi_slopes: [heads of this rank] float32, ALiBi's bias by distance; None for none.
        soft_cap: logits become cap * tanh(logit / cap); None leaves them.
        sinks: [heads of this rank] float32, the logit of a key without a value; None for none.
    """

    def __init__(
        self,
        layer_index: int,
        scale: float,
        sliding_window: int | None = None,
        *,
        alibi_slopes: torch.Tensor | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self._layer_index = layer_index
        self._scale = scale
        self._sliding_window = sliding_window
        self._alibi_slopes = alibi_slopes
        self._soft_cap = soft_cap
        self._sinks = sinks

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor | None,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Return [rows, heads * elements of a value].

        Mutates: this layer's cache.

        Args:
            query: [rows, heads, head_dim], any token stride.
            key: [rows, kv_heads, head_dim], any token stride.
            value: as key; None where values are the first elements of keys.
            metadata: of the step.
        """
        cache = self._await_cache(metadata)
        real = metadata.num_tokens
        ops.reshape_and_cache(
            key[:real],
            None if value is None else value[:real],
            cache.keys,
            None if value is None else cache.values,
            metadata.slot_mapping,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
        )
        value_size = cache.values.shape[-1] if value is None else value.shape[-1]
        return self._attend(query, cache, metadata, value_size)

    def rotated(
        self,
        rotary: RotaryEmbedding,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Rotate query and key by their positions first; otherwise the same as a call.

        Mutates: this layer's cache, and `query`.

        Args:
            rotary: angles of the positions.
            positions: [rows] int64.
            query: [rows, heads, head_dim], any token stride.
            key: [rows, kv_heads, head_dim], any token stride.
            value: as key.
            metadata: of the step.
        """
        cache = self._await_cache(metadata)
        ops.rotary_and_cache(
            positions,
            query,
            key,
            value,
            rotary.cos_sin_cache,
            rotary.is_neox,
            cache.keys,
            cache.values,
            metadata.slot_mapping,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
        )
        return self._attend(query, cache, metadata, value.shape[-1])

    def _await_cache(self, metadata: AttentionMetadata) -> LayerCache:
        """Return the keys and values of this layer when no other thread writes to them."""
        metadata.caches.before_layer(self._layer_index)
        return metadata.caches.layer(self._layer_index)

    def _attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        metadata: AttentionMetadata,
        value_size: int,
    ) -> torch.Tensor:
        rows, num_heads, _ = query.shape
        out = query.new_empty(rows, num_heads, value_size)
        real = metadata.num_tokens
        out[real:].zero_()
        plan = None
        if metadata.plans is not None:
            plan = metadata.plans.get(self._sliding_window, query[:real], cache.keys, cache.values)
        ops.paged_attention(
            out[:real],
            query[:real],
            cache.keys,
            cache.values,
            metadata.block_tables,
            metadata.seq_lens,
            metadata.query_start_loc,
            self._scale,
            alibi_slopes=self._alibi_slopes,
            sliding_window=self._sliding_window,
            soft_cap=self._soft_cap,
            sinks=self._sinks,
            plan=plan,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
        )
        return out.view(rows, num_heads * value_size)
