"""The paged key/value cache of every layer, and its place for swapped blocks in host memory."""

from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np
import torch

from quire.contract.errors import ConfigError, InvalidRequestError
from worker_svc.arrays import IntArray
from worker_svc.cache.block_bytes import block_bytes_of
from worker_svc.cache.block_size import check_block_size
from worker_svc.cache.calibration import calibrate
from worker_svc.cache.mover_cpu import BlockMover
from worker_svc.cache.mover_gpu import StreamBlockMover
from worker_svc.cache.shapes import empty_caches, token_bytes
from worker_svc.device.cuda import CudaDevice
from worker_svc.layers.attention import KVCaches
from worker_svc.loading.loader import LoadedModel

# More host blocks than this for each block of the cache would only wait.
MAX_HOST_BLOCKS_PER_BLOCK = 4
MEASURED_BLOCKS = 16


def block_bytes(loaded: LoadedModel, block_size: int) -> int:
    """Return the bytes of one block, keys and values, over all layers of this rank."""
    bytes_of_layer = token_bytes(loaded.model.heads, loaded.kv_cache_dtype)
    return loaded.model.num_layers * block_size * bytes_of_layer


def device_block_bytes(loaded: LoadedModel, block_size: int) -> int:
    """Return the bytes that one block takes on the device, those of a draft model included."""
    own = block_bytes(loaded, block_size)
    return own + (block_bytes(loaded.draft, block_size) if loaded.draft is not None else 0)


def allocate_caches(loaded: LoadedModel, block_size: int, num_blocks: int) -> KVCaches:
    """Return zeroed caches; see empty_caches for shapes.

    They are written once here, so that no step pays for page faults.

    Raises:
        ConfigError: there is not enough memory.
    """
    try:
        device = loaded.device.torch_device
        caches = _empty_caches(loaded, block_size, num_blocks, partial(torch.empty, device=device))
        for cache in chain.from_iterable(caches.stored):
            cache.view(torch.uint8).zero_()  # as bytes: not every type can be filled
        return caches
    except (RuntimeError, MemoryError) as error:
        total = num_blocks * block_bytes(loaded, block_size)
        raise ConfigError(
            f"num_blocks: must fit the memory, got {num_blocks} blocks of {block_size} tokens, "
            f"{total} bytes"
        ) from error


def allocate_tensors(loaded: LoadedModel, block_size: int, num_blocks: int) -> list[torch.Tensor]:
    """Return the tensors that caches of these sizes consist of, of a draft model's cache too.

    Raises:
        ConfigError: there is not enough memory.
    """
    models = [loaded] if loaded.draft is None else [loaded, loaded.draft]
    caches = [allocate_caches(each, block_size, num_blocks) for each in models]
    return [*chain.from_iterable(chain.from_iterable(each.stored for each in caches))]


def _allocate_for_steps(loaded: LoadedModel, block_size: int, num_blocks: int) -> KVCaches:
    caches = allocate_caches(loaded, block_size, num_blocks)
    if loaded.kv_cache_dtype is torch.float8_e4m3fn:
        caches.scales = calibrate(loaded)
    return caches


def _empty_caches(
    loaded: LoadedModel, block_size: int, num_blocks: int, empty: Callable[..., torch.Tensor]
) -> KVCaches:
    model = loaded.model
    return empty_caches(
        model.num_layers, model.heads, loaded.kv_cache_dtype, block_size, num_blocks, empty
    )


class CacheEngine:
    """Owns the caches and moves blocks within and between them.

    With a CPU, the operating system provides host memory when blocks are first moved there; with a
    GPU it is pinned, and taken at once.

    Args:
        loaded: the model.
        block_size: tokens of a block.
        num_blocks: blocks of each layer.
        swap_space_bytes: host memory for swapped blocks, over all layers.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of each layer.
        device_bytes: bytes of all blocks, those of a draft model included.
        host_bytes: bytes of all blocks in host memory.
        num_host_blocks: blocks of each layer in host memory.
        caches: caches of every layer.
        draft_caches: of the draft model, the same blocks, which do not move; None without one.
        mover: moves blocks.
        block_bytes: reads and writes blocks as bytes.

    Raises:
        ConfigError: the kernels do not serve these sizes, or there is not enough memory.
    """

    def __init__(
        self, loaded: LoadedModel, block_size: int, num_blocks: int, swap_space_bytes: int = 0
    ) -> None:
        check_block_size(block_size)
        if num_blocks < 1:
            raise ConfigError(f"num_blocks: must be at least 1, got {num_blocks}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        own_bytes = block_bytes(loaded, block_size)
        self.num_host_blocks = min(
            swap_space_bytes // own_bytes,
            MAX_HOST_BLOCKS_PER_BLOCK * num_blocks,
        )
        self.device_bytes = num_blocks * device_block_bytes(loaded, block_size)
        self.host_bytes = self.num_host_blocks * own_bytes
        self.caches = _allocate_for_steps(loaded, block_size, num_blocks)
        self.draft_caches: KVCaches | None = None
        if loaded.draft is not None:
            self.draft_caches = _allocate_for_steps(loaded.draft, block_size, num_blocks)
        self.mover = self._make_mover(loaded)
        self.caches.before_layer = self.mover.await_layer
        self.block_bytes = block_bytes_of(loaded.device, self.caches)

    def _make_mover(self, loaded: LoadedModel) -> BlockMover | StreamBlockMover:
        device, sizes = loaded.device, (self.block_size, self.num_host_blocks)
        if isinstance(device, CudaDevice):
            host_caches = _empty_caches(loaded, *sizes, device.pinned_for_long)
            return StreamBlockMover(device, self.caches, host_caches)
        return BlockMover(self.caches, _empty_caches(loaded, *sizes, torch.empty))

    def move(self, swap_out: IntArray, swap_in: IntArray, copy: IntArray) -> None:
        """Begin to move blocks, in this order; each layer waits for its own.

        Mutates: the caches.

        Args:
            swap_out: [num_pairs, 2] int64 block and host block.
            swap_in: [num_pairs, 2] int64 host block and block.
            copy: [num_pairs, 2] int64 source and destination, applied in order.

        Raises:
            InvalidRequestError: a block number is out of bounds.
        """
        limits = np.array([self.num_blocks, self.num_host_blocks])
        _check_pairs("blocks_to_swap_out", swap_out, limits)
        _check_pairs("blocks_to_swap_in", swap_in, limits[::-1])
        _check_pairs("blocks_to_copy", copy, limits[[0, 0]])
        self.mover.start(swap_out, swap_in, copy)

    def measure_block_us(self) -> float:
        """Return the microseconds to move one block one way; 0 without host blocks.

        The contents of the caches stay.
        """
        if not self.num_host_blocks:
            return 0.0
        # Several blocks, since starting a move has a cost of its own.
        count = min(MEASURED_BLOCKS, self.num_host_blocks, self.num_blocks)
        pairs = np.arange(count).repeat(2).reshape(count, 2)
        nothing = pairs[:0]
        times = []
        for _ in range(5):  # the first moves wait for memory
            self.mover.start(pairs, nothing, nothing)
            times.append(self.mover.finish()())
        return min(times) / count


def _check_pairs(field: str, pairs: IntArray, limits: IntArray) -> None:
    if len(pairs) > 0 and ((pairs < 0) | (pairs >= limits)).any():
        raise InvalidRequestError(
            field, f"must be below {limits.tolist()}, got {pairs.max(axis=0).tolist()}"
        )
