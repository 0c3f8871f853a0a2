"""The paged key/value cache of every layer."""

import torch

from quire.errors import ConfigError
from worker_svc import ops
from worker_svc.layers.attention import KVCaches
from worker_svc.loader import LoadedModel
from worker_svc.steps import IntArray

# What the attention kernels serve; powers of two between them.
MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 256


def check_block_size(block_size: int) -> None:
    """Check that the kernels serve blocks of this many tokens.

    Raises:
        ConfigError: they do not; names the values they serve.
    """
    in_range = MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
    if not in_range or block_size & (block_size - 1):
        raise ConfigError(
            f"block_size: must be a power of two in [{MIN_BLOCK_SIZE}, {MAX_BLOCK_SIZE}], "
            f"got {block_size}"
        )


def block_bytes(loaded: LoadedModel, block_size: int) -> int:
    """Return the bytes of one block, keys and values, over all layers of this rank."""
    heads = loaded.model.heads
    elements = heads.num_kv_heads * block_size * heads.head_dim
    return 2 * loaded.model.num_layers * elements * loaded.dtype.itemsize


def allocate_caches(loaded: LoadedModel, block_size: int, num_blocks: int) -> KVCaches:
    """Return zeroed caches.

    They are written once here, so that no step pays for the page faults.

    Raises:
        ConfigError: there is not enough memory.
    """
    heads = loaded.model.heads
    shape = (num_blocks, heads.num_kv_heads, block_size, heads.head_dim)

    def per_layer() -> list[torch.Tensor]:
        return [
            torch.empty(shape, dtype=loaded.dtype).zero_() for _ in range(loaded.model.num_layers)
        ]

    try:
        return KVCaches(per_layer(), per_layer())
    except (RuntimeError, MemoryError) as error:
        total = num_blocks * block_bytes(loaded, block_size)
        raise ConfigError(
            f"num_blocks: {num_blocks} blocks of {block_size} tokens take {total} bytes, "
            "more than there is memory for"
        ) from error


class CacheEngine:
    """Owns the caches and moves blocks within them.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of each layer.
        caches: of every layer.
    """

    def __init__(self, loaded: LoadedModel, block_size: int, num_blocks: int) -> None:
        check_block_size(block_size)
        if num_blocks < 1:
            raise ConfigError(f"num_blocks: must be at least 1, got {num_blocks}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.caches = allocate_caches(loaded, block_size, num_blocks)

    def copy(self, pairs: IntArray) -> None:
        """Copy blocks within every layer's cache.

        Mutates: the caches.

        Args:
            pairs: [num_pairs, 2] source and destination, applied in order.
        """
        if len(pairs) > 0:
            ops.copy_blocks(self.caches.keys, self.caches.values, torch.from_numpy(pairs))
