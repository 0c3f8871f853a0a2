"""The operations that write, read and move cached keys and values.

worker_svc.ops documents what all operations share.
"""

from torch import Tensor

from worker_svc.ops import compiled


def reshape_and_cache(
    key: Tensor,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor | None,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Write the keys and values of new tokens into their cache slots.

    Args:
        key: [T, Hkv, D].
        value: [T, Hkv, D]; None where values are part of the keys' rows.
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache; None as `value`.
        slot_mapping: [T] int64, block * BS + offset; a negative slot marks padding and is skipped.
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.

    Mutates:
        key_cache, value_cache.
    """
    compiled._C.reshape_and_cache(
        key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale
    )


def gather_cached_kv(
    key_out: Tensor,
    value_out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Read keys and values back from their slots, the inverse of reshape_and_cache.

    Args:
        key_out: [T, Hkv, D].
        value_out: [T, Hkv, D].
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        slot_mapping: [T] int64; rows with a negative slot are not written.
        k_scale: as for reshape_and_cache.
        v_scale: as for reshape_and_cache.

    Mutates:
        key_out, value_out.
    """
    compiled._C.gather_cached_kv(
        key_out, value_out, key_cache, value_cache, slot_mapping, k_scale, v_scale
    )


def rotary_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Rotate queries in place, and write rotated keys and values into their cache slots.

    The bits are those of rotary_embedding and reshape_and_cache one after the other, but `key` does
    not change.

    Args:
        positions: [T] int64, in [0, P).
        query: [T, H, D].
        key: [T, Hkv, D].
        value: [T, Hkv, D].
        cos_sin_cache: [P, R] float32, as for rotary_embedding.
        is_neox: as for rotary_embedding.
        key_cache: [B, Hkv, BS, D], or quantised.
        value_cache: as key_cache.
        slot_mapping: [S] int64, S <= T, slots of the first S rows. Rows beyond those and rows with
            a negative slot are padding: only their queries are rotated.
        k_scale: [Hkv] float32, of float8 caches only; None for 1.
        v_scale: as k_scale.

    Mutates:
        query, key_cache, value_cache.
    """
    compiled._C.rotary_and_cache(
        positions,
        query,
        key,
        value,
        cos_sin_cache,
        is_neox,
        key_cache,
        value_cache,
        slot_mapping,
        k_scale,
        v_scale,
    )


def copy_blocks(
    key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Tensor
) -> None:
    """Copy blocks within the caches of every layer.

    Args:
        key_caches: One [B, Hkv, BS, D] per layer, of any dtype; each block dense in memory.
        value_caches: As key_caches, whatever their D; none where values are part of the keys' rows.
        block_mapping: [P, 2] int64 pairs (source, destination), applied in order: a pair reads the
            results of earlier ones.

    Mutates:
        key_caches, value_caches.
    """
    compiled._C.copy_blocks(key_caches, value_caches, block_mapping)


def swap_blocks(src_cache: Tensor, dst_cache: Tensor, block_mapping: Tensor) -> None:
    """Copy blocks from one cache to another of the same layout.

    Args:
        src_cache: [B, Hkv, BS, D], of any dtype, each block dense in memory.
        dst_cache: [B', Hkv, BS, D].
        block_mapping: [P, 2] int64 pairs (source block, destination block).

    Mutates:
        dst_cache.
    """
    compiled._C.swap_blocks(src_cache, dst_cache, block_mapping)
