"""Moves blocks between a GPU and pinned host memory on a stream of their own, layer by layer.

Moving layer 5 overlaps computing layer 4: the compute stream waits, for each layer, for the event
that its blocks are where they should be.
"""

from collections.abc import Callable

import torch

from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.device.cuda import CudaDevice, Event
from worker_svc.layers.attention import KVCaches


class StreamBlockMover:
    """A stream that copies memory.

    Args:
        device: with the stream.
        caches: of the model.
        host_caches: of the same layout in pinned memory, for swapped blocks.
    """

    def __init__(self, device: CudaDevice, caches: KVCaches, host_caches: KVCaches) -> None:
        self._device = device
        # Not `caches` itself, which knows this mover.
        self._keys, self._values = caches.keys, caches.values
        self._host_keys, self._host_values = host_caches.keys, host_caches.values
        # Of each layer, when its move is done; empty when nothing moves.
        self._done: list[Event] = []
        self._times: tuple[Event, Event] | None = None

    def start(self, swap_out: IntArray, swap_in: IntArray, copy: IntArray) -> None:
        """Begin to move [n, 2] pairs of blocks, in this order; what was begun before is done first.

        Mutates: the caches; those of a layer must not be touched before `await_layer`.
        """
        self.await_all()
        copies = torch.from_numpy(copy)
        if len(swap_out) == len(swap_in) == 0:
            if len(copy) > 0:
                # A block or two: not worth another stream.
                ops.copy_blocks(self._keys, self._values, copies)
            return
        device = self._device
        out, back = torch.from_numpy(swap_out), torch.from_numpy(swap_in)
        device.copy_stream.wait_stream(device.compute_stream)  # what is moved has been computed
        started = device.new_event(timing=True)
        with device.on_stream(device.copy_stream):
            started.record(device.copy_stream)
            for layer in range(len(self._keys)):
                for cache, host_cache in (
                    (self._keys[layer], self._host_keys[layer]),
                    (self._values[layer], self._host_values[layer]),
                ):
                    if len(swap_out) > 0:
                        ops.swap_blocks(cache, host_cache, out)
                    if len(swap_in) > 0:
                        ops.swap_blocks(host_cache, cache, back)
                if len(copy) > 0:
                    ops.copy_blocks([self._keys[layer]], [self._values[layer]], copies)
                done = device.new_event(timing=True)
                done.record(device.copy_stream)
                self._done.append(done)
        self._times = started, self._done[-1]

    @property
    def is_moving(self) -> bool:
        """Whether layers must be awaited."""
        return bool(self._done)

    def await_layer(self, layer: int) -> None:
        """Let what is started from now on find the blocks of a layer where they should be."""
        if self._done:
            self._device.compute_stream.wait_event(self._done[layer])

    def await_all(self) -> None:
        """Let what is started from now on find all blocks where they should be."""
        if self._done:
            self._device.compute_stream.wait_event(self._done[-1])
            self._done = []

    def finish(self) -> Callable[[], int]:
        """End the step's moves; return what waits for them and tells the microseconds they took."""
        self.await_all()
        times, self._times = self._times, None
        if times is None:
            return lambda: 0
        started, done = times

        def elapsed_us() -> int:
            done.synchronize()
            return round(1000 * started.elapsed_time(done))

        return elapsed_us
