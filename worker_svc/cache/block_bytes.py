"""Blocks of the cache as bytes, for workers that send them to each other.

The bytes of a block are its keys, then its values unless they are part of those, of the first
layer, then of the next.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker_svc import ops
from worker_svc.device.cuda import CudaDevice
from worker_svc.layers.attention import KVCaches

# Pinned memory that blocks of a GPU pass through, unless a single one is larger.
STAGING_BYTES = 8 * 2**20

Bytes = npt.NDArray[np.uint8]


class BlockBytes(Protocol):
    """Reads and writes blocks.

    Reading and writing may happen in two threads at once, each of them in one.

    Attributes:
        block_bytes: bytes of a block, over all layers.
    """

    block_bytes: int

    def read(self, block_id: int) -> bytes:
        """Return the bytes of a block, once all work that has written to it is done."""

    def write(self, block_ids: Sequence[int], contents: Sequence[bytes]) -> None:
        """Write blocks, after all work that was started before.

        Mutates: the caches.

        Args:
            block_ids: the blocks.
            contents: bytes of each.
        """


class HostBlockBytes:
    """BlockBytes of caches in the host's memory.

    Args:
        caches: caches of every layer.
    """

    def __init__(self, caches: KVCaches) -> None:
        # [blocks, bytes] of each layer's tensors, in the order of a block's bytes.
        self._parts = [_as_bytes(cache) for layer in caches.stored for cache in layer]
        self.block_bytes = sum(part.shape[1] for part in self._parts)

    def read(self, block_id: int) -> bytes:
        """See BlockBytes."""
        return b"".join([part[block_id].data for part in self._parts])

    def write(self, block_ids: Sequence[int], contents: Sequence[bytes]) -> None:
        """See BlockBytes."""
        for block_id, each in zip(block_ids, contents, strict=True):
            start = 0
            for part in self._parts:
                end = start + part.shape[1]
                part[block_id] = np.frombuffer(each, np.uint8, end - start, start)
                start = end


class DeviceBlockBytes:
    """BlockBytes of caches on a GPU, which pass through pinned memory.

    Args:
        device: the GPU.
        caches: caches of every layer.
    """

    def __init__(self, device: CudaDevice, caches: KVCaches) -> None:
        self._device = device
        self._layers = caches.stored
        self._read_stream = device.new_stream()
        each = sum(cache[0].nbytes for layer in self._layers for cache in layer)
        self.block_bytes = each
        self._num_staged = max(1, STAGING_BYTES // each)
        # Made when first needed: of one block to read, of several to write.
        self._read_staging: KVCaches | None = None
        self._write_staging: KVCaches | None = None

    def read(self, block_id: int) -> bytes:
        """See BlockBytes."""
        if self._read_staging is None:
            self._read_staging = self._make_staging(1)
        staging = self._read_staging
        with self._device.on_stream(self._read_stream):
            self._copy(self._layers, staging.stored, [(block_id, 0)])
            done = self._device.new_event()
            done.record(self._read_stream)
        done.synchronize()
        return HostBlockBytes(staging).read(0)

    def write(self, block_ids: Sequence[int], contents: Sequence[bytes]) -> None:
        """See BlockBytes."""
        if self._write_staging is None:
            self._write_staging = self._make_staging(self._num_staged)
        staging, size = self._write_staging, self._num_staged
        for start in range(0, len(block_ids), size):
            part = block_ids[start : start + size]
            places = range(len(part))
            HostBlockBytes(staging).write(places, contents[start : start + size])
            pairs = list(zip(places, part, strict=True))
            self._copy(staging.stored, self._layers, pairs)
            done = self._device.new_event()
            done.record(self._device.compute_stream)
            done.synchronize()  # before the staging memory is written again

    def _make_staging(self, num_blocks: int) -> KVCaches:
        def pinned(cache: torch.Tensor) -> torch.Tensor:
            return self._device.pinned((num_blocks, *cache.shape[1:]), cache.dtype)

        return KVCaches([tuple(map(pinned, layer)) for layer in self._layers])

    def _copy(
        self,
        sources: list[tuple[torch.Tensor, ...]],
        destinations: list[tuple[torch.Tensor, ...]],
        pairs: list[tuple[int, int]],
    ) -> None:
        mapping = torch.tensor(pairs, dtype=torch.int64)
        for source, destination in zip(sources, destinations, strict=True):
            for each, other in zip(source, destination, strict=True):
                ops.swap_blocks(each, other, mapping)


def block_bytes_of(device: object, caches: KVCaches) -> BlockBytes:
    """Return what reads and writes caches as bytes.

    Args:
        device: where they are.
        caches: caches of every layer.
    """
    if isinstance(device, CudaDevice):
        return DeviceBlockBytes(device, caches)
    return HostBlockBytes(caches)


def _as_bytes(cache: torch.Tensor) -> Bytes:
    """Return a view [blocks, bytes] of a cache in the host's memory."""
    as_bytes: Bytes = cache.view(torch.uint8).view(len(cache), -1).numpy()
    return as_bytes
