"""Moves blocks between a GPU and pinned host memory on a stream of their own, layer by layer.

Moving layer 5 overlaps computing layer 4: before each layer the compute stream waits for the event
that the blocks of the layer are in place.
"""

from collections.abc import Callable
from itertools import chain

import torch

from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.device.cuda import CudaDevice, Event
from worker_svc.layers.attention import KVCaches


class StreamBlockMover:
    """A stream that copies memory.

    Args:
        device: the GPU.
        caches: caches of the model.
        host_caches: caches of the same layout in pinned memory, for swapped blocks.
    """

    def __init__(self, device: CudaDevice, caches: KVCaches, host_caches: KVCaches) -> None:
        self._device = device
        # Not `caches` itself, which refers to this mover.
        self._layers, self._host_layers = caches.stored, host_caches.stored
        # For each layer, the event that its blocks are in place; empty when nothing moves.
        self._done: list[Event] = []
        self._times: tuple[Event, Event] | None = None

    def start(self, swap_out: IntArray, swap_in: IntArray, copy: IntArray) -> None:
        """Begin to move pairs [n, 2] int64 of blocks, in this order, after the moves before.

        Mutates: the caches; those of a layer must not be touched before `await_layer`.
        """
        self.await_all()
        copies = torch.from_numpy(copy)
        if len(swap_out) == len(swap_in) == 0:
            if len(copy) > 0:
                # One or two blocks are not worth another stream.
                ops.copy_blocks(list(chain.from_iterable(self._layers)), [], copies)
            return
        device = self._device
        out, back = torch.from_numpy(swap_out), torch.from_numpy(swap_in)
        device.copy_stream.wait_stream(device.compute_stream)  # the blocks have been computed
        started = device.new_event(timing=True)
        with device.on_stream(device.copy_stream):
            started.record(device.copy_stream)
            for caches, host_caches in zip(self._layers, self._host_layers, strict=True):
                for cache, host_cache in zip(caches, host_caches, strict=True):
                    if len(swap_out) > 0:
                        ops.swap_blocks(cache, host_cache, out)
                    if len(swap_in) > 0:
                        ops.swap_blocks(host_cache, cache, back)
                if len(copy) > 0:
                    ops.copy_blocks(list(caches), [], copies)
                done = device.new_event(timing=True)
                done.record(device.copy_stream)
                self._done.append(done)
        self._times = started, self._done[-1]

    @property
    def is_moving(self) -> bool:
        """Whether layers must wait for blocks."""
        return bool(self._done)

    def await_layer(self, layer: int) -> None:
        """Make work that is started from now on wait for the blocks of a layer."""
        if self._done:
            self._device.compute_stream.wait_event(self._done[layer])

    def await_all(self) -> None:
        """Make work that is started from now on wait for all blocks."""
        if self._done:
            self._device.compute_stream.wait_event(self._done[-1])
            self._done = []

    def finish(self) -> Callable[[], int]:
        """End the moves; return a function that waits for them and returns their microseconds."""
        self.await_all()
        times, self._times = self._times, None
        if times is None:
            return lambda: 0
        started, done = times

        def elapsed_us() -> int:
            done.synchronize()
            return round(1000 * started.elapsed_time(done))

        return elapsed_us
