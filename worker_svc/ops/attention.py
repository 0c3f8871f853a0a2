"""Attention over the paged cache.

worker_svc.ops documents what all operations share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from worker_svc.ops import compiled

if TYPE_CHECKING:
    from worker_svc._C import AttentionPlan


def plan_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    block_tables: Tensor | None = None,
    table_rows: Tensor | None = None,
    sliding_window: int | None = None,
    max_seq_len: int | None = None,
    max_query_len: int = 1,
    earlier: AttentionPlan | None = None,
) -> AttentionPlan | None:
    """Divide the attention of a step among blocks of a GPU, once for all layers that are alike.

    The division changes no result.

    Mutates:
        earlier.

    Args:
        query: [T, H, D]; here and in the caches only shapes, strides and dtypes count, and whether
            values are a view of the keys.
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as for `paged_attention`.
        seq_lens: [N] int32, on the CPU.
        query_start_loc: [N + 1] int32, on the CPU.
        block_tables: [R, MB] int32, on the CPU: blocks with which many decoding sequences begin
            are then read once for several of them.
        table_rows: [N] int64, on the CPU: which of the tables is each sequence's.
        sliding_window: as for `paged_attention`.
        max_seq_len: makes a plan for captured graphs, whose sequences have at most `max_query_len`
            rows each. Made again for the same sizes and any lengths up to this one, it keeps the
            addresses that a graph was captured with. Where its `launches`, of which there are few
            values, are others than those, it needs another graph: they are the columns and blocks
            of each launch. Of one row each, only `shared_blocks` change: the blocks of the launch
            that reads what sequences share, 0 for no such launch.
        max_query_len: most rows of a sequence; read with `max_seq_len`.
        earlier: a plan that is no longer needed; the new one reuses its memory.

    On a GPU it is made and used on one stream, torch's current one.

    Returns:
        The plan for `paged_attention` over these sequences; None on devices that need none.
    """
    return compiled._C.plan_attention(
        query,
        key_cache,
        value_cache,
        seq_lens,
        query_start_loc,
        block_tables,
        table_rows,
        sliding_window,
        max_seq_len,
        max_query_len,
        earlier,
    )


def paged_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    *,
    alibi_slopes: Tensor | None = None,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    plan: AttentionPlan | None = None,
) -> None:
    """Causal attention of a ragged batch over paged keys and values: decode, prefill, chunks.

    Row j of sequence i, which is row query_start_loc[i] + j of query, stands at position
    seq_lens[i] - query_len + j and sees the keys at its own and earlier positions. Query head h
    reads key/value head h // (H // Hkv). Logits are scaled, then capped, then biased, then masked.
    Quantised caches count as the numbers that they stand for, up to float32 rounding.

    Args:
        out: [T, H, Dv]; rows from query_start_loc[N] on are not written.
        query: [T, H, D]; D and Dv multiples of 8 up to 576.
        key_cache: [B, Hkv, BS, D], or quantised, with D up to 256; BS a power of two in [8, 256].
        value_cache: [B, Hkv, BS, Dv], of quantised caches as key_cache. It may be a view of
            key_cache[..., :Dv], as in latent attention.
        block_tables: [N, MB] int32; only entries that hold a visible key are read.
        seq_lens: [N] int32, keys of each sequence including those of this step.
        query_start_loc: [N + 1] int32, starting at 0; a sequence may have no rows.
        scale: Factor of the logits, usually 1 / sqrt(D).
        alibi_slopes: [H] float32; adds slope * (key position - query position) (Press et al. 2022).
        sliding_window: Only keys with query position - key position < window are seen.
        soft_cap: Logits become cap * tanh(logit / cap).
        sinks: [H] float32; a logit, in no way changed, of one more key, which has no value.
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.
        plan: the result of `plan_attention` for this step; without one each call makes its own, for
            which the CPU waits for the GPU.

    Mutates:
        out.
    """
    compiled._C.paged_attention(
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        query_start_loc,
        scale,
        alibi_slopes,
        sliding_window,
        soft_cap,
        sinks,
        k_scale,
        v_scale,
        plan,
    )
