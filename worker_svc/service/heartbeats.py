"""Heartbeats of a worker: that it is alive, and how long its step has run."""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from quire.contract.workers import RunningStep
from quire.observe.log import get_logger
from quire.rpc.heartbeat import INTERVAL_S, PeerWatch
from quire.v1 import worker_pb2
from quire.wire.worker import running_step_to_proto
from worker_svc.service.counters import Counters
from worker_svc.service.epochs import EpochGuard
from worker_svc.service.step_clock import StepClock

EXIT_HUNG = 71
_STACK_DEPTH = 8

log = get_logger()


class Heartbeats:
    """Exchanges heartbeats with schedulers, on the event loop beside the model's thread.

    Args:
        counters: report the step under way.
        epochs: are released when the scheduler falls silent.
        waits_for_ranks: whether the model's thread waits for other ranks.
        peer_timeout_s: how long a scheduler may be silent.
    """

    def __init__(
        self,
        counters: Counters,
        epochs: EpochGuard,
        waits_for_ranks: Callable[[], bool],
        peer_timeout_s: float,
    ) -> None:
        self._counters = counters
        self._epochs = epochs
        self._waits_for_ranks = waits_for_ranks
        self._peer_timeout_s = peer_timeout_s

    async def exchange(
        self, requests: AsyncIterator[worker_pb2.HeartbeatRequest]
    ) -> AsyncGenerator[worker_pb2.HeartbeatResponse, None]:
        """Yield heartbeats until the scheduler leaves or falls silent, which frees the worker.

        Raises:
            StaleEpochError: another scheduler has the worker.
        """
        peer, clock = _Scheduler(PeerWatch(self._peer_timeout_s)), StepClock()
        reader = asyncio.create_task(self._read(requests, peer))
        silence = asyncio.create_task(peer.watch.until_silent())
        try:
            while not (reader.done() or silence.done()):
                step_id, running_s, limit_s = self._counters.running
                running_ms = round(1000 * clock.tick(step_id, running_s))
                waits = self._waits_for_ranks()
                step = RunningStep(step_id, running_ms, waits, round(1000 * limit_s))
                yield running_step_to_proto(step)
                await asyncio.wait(
                    (reader, silence), timeout=INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
                )
            # Also of one that was stopped meanwhile, which would form its workers again.
            self._check(peer)
            if silence.done():
                self._epochs.is_driver_silent = True
                log.warning("scheduler_silent", reason=silence.result())
        finally:
            reader.cancel()
            silence.cancel()
            await asyncio.gather(reader, silence, return_exceptions=True)

    async def _read(
        self, requests: AsyncIterator[worker_pb2.HeartbeatRequest], peer: "_Scheduler"
    ) -> None:
        """Take heartbeats until the scheduler leaves, or another one has the worker."""
        async for request in requests:
            peer.watch.began()
            peer.epoch, peer.start = request.epoch, request.scheduler_start
            self._check(peer)
            self._epochs.is_driver_silent = False
            step_id, running_s, _ = self._counters.running
            if step_id and (request.hung_step_id, request.epoch) == (step_id, self._epochs.highest):
                # A thread cannot be ended; the supervisor starts the process again.
                log.critical(
                    "step_hangs", step_id=step_id, running_s=round(running_s, 1), stacks=_stacks()
                )
                os._exit(EXIT_HUNG)

    def _check(self, peer: "_Scheduler") -> None:
        """Raise StaleEpochError if another scheduler has the worker now."""
        # One of an earlier release would take the worker back.
        if peer.start:
            self._epochs.check(peer.epoch, peer.start)


@dataclass(slots=True)
class _Scheduler:
    """Who sends heartbeats.

    Attributes:
        watch: counts for how long it has been silent.
        epoch: of its last heartbeat.
        start: of its last heartbeat; empty from an earlier release.
    """

    watch: PeerWatch
    epoch: int = 0
    start: str = ""


def _stacks() -> dict[str, list[str]]:
    """Return where each thread is, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{each.filename}:{each.lineno} {each.name}"
            for each in traceback.extract_stack(frame, limit=-_STACK_DEPTH)
        ]
        for ident, frame in sys._current_frames().items()
    }
