"""Moves blocks between the cache and the host, layer by layer, beside the model's computation.

Moving layer 5 overlaps computing layer 4: the model waits only for the layer it is about to touch.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import torch

from worker_svc import ops
from worker_svc.arrays import IntArray
from worker_svc.layers.attention import KVCaches


class BlockMover:
    """A thread that copies memory; the kernels it calls release the interpreter.

    Args:
        caches: caches of the model.
        host_caches: caches of the same layout, for swapped blocks.
    """

    def __init__(self, caches: KVCaches, host_caches: KVCaches) -> None:
        # Not `caches` itself, which refers to this mover: only a garbage collection frees a cycle,
        # and objects that were frozen are never collected.
        self._layers, self._host_layers = caches.stored, host_caches.stored
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="block-mover")
        # For each layer, the microseconds that its move took; empty when nothing moves.
        self._moves: list[Future[float]] = []

    def start(self, swap_out: IntArray, swap_in: IntArray, copy: IntArray) -> None:
        """Begin to move pairs [n, 2] int64 of blocks, in this order, after the moves before.

        Mutates: the caches; those of a layer must not be touched before `await_layer`.
        """
        self.finish()
        orders = [torch.from_numpy(pairs) for pairs in (swap_out, swap_in, copy)]
        if len(swap_out) == len(swap_in) == 0:
            if len(copy) > 0:
                # One or two blocks are not worth a thread.
                ops.copy_blocks(list(chain.from_iterable(self._layers)), [], orders[2])
            return
        self._moves = [
            self._thread.submit(self._move_layer, layer, *orders)
            for layer in range(len(self._layers))
        ]

    @property
    def is_moving(self) -> bool:
        """Whether layers must wait for blocks."""
        return bool(self._moves)

    def await_layer(self, layer: int) -> None:
        """Wait until the blocks of a layer are in place."""
        if self._moves:
            self._moves[layer].result()

    def finish(self) -> Callable[[], int]:
        """Wait for all layers; return a function that returns the microseconds of the moves."""
        moves, self._moves = self._moves, []
        elapsed_us = round(sum(move.result() for move in moves))
        return lambda: elapsed_us

    def _move_layer(
        self, layer: int, swap_out: torch.Tensor, swap_in: torch.Tensor, copy: torch.Tensor
    ) -> float:
        started = time.perf_counter()
        caches = self._layers[layer]
        for cache, host_cache in zip(caches, self._host_layers[layer], strict=True):
            if len(swap_out) > 0:
                ops.swap_blocks(cache, host_cache, swap_out)
            if len(swap_in) > 0:
                ops.swap_blocks(host_cache, cache, swap_in)
        if len(copy) > 0:
            ops.copy_blocks(list(caches), [], copy)
        return 1e6 * (time.perf_counter() - started)
