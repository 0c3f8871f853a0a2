"""Heartbeats between a scheduler and one worker."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from quire.contract.errors import UnavailableError
from quire.rpc.heartbeat import INTERVAL_S, PeerWatch
from quire.v1 import worker_pb2
from quire.wire.worker import running_step_from_proto
from scheduler_svc.workers.patience import Patience


class WorkerHeartbeats:
    """Exchanges heartbeats with a worker until it is lost, or hangs in a step.

    Args:
        method: the Heartbeat call of the worker.
        peer_timeout_s: how long the worker may be silent.
        epoch: of the worker's steps.
        patience: with its steps.
        on_lost: called with the reason.
    """

    def __init__(
        self,
        method: Callable[[], Any],  # grpc.aio.StreamStreamCall, generic in its stub only
        peer_timeout_s: float,
        epoch: int,
        patience: Patience,
        on_lost: Callable[[str], None],
    ) -> None:
        self._method = method
        self._watch = PeerWatch(peer_timeout_s)
        self._epoch = epoch
        self._patience = patience
        self._on_lost = on_lost
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Send and expect no more heartbeats."""
        self._task.cancel()

    async def _run(self) -> None:
        call = self._method()
        reader = asyncio.create_task(self._read(call))
        silence = asyncio.create_task(self._watch.until_silent())
        tasks = (reader, silence, asyncio.create_task(self._beat(call)))
        try:
            await asyncio.wait((reader, silence), return_when=asyncio.FIRST_COMPLETED)
            reason = reader.result() if reader.done() else silence.result()
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except UnavailableError as error:
            reason = error.message
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._on_lost(reason)

    async def _read(self, call: Any) -> str:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._watch.began()
            beat = running_step_from_proto(message)
            limit_s = self._patience.limit_s(beat)
            # A rank that waits for another hangs by no fault of its own.
            if beat.step_id and not beat.waits_for_ranks and beat.running_ms > 1000 * limit_s:
                hung = worker_pb2.HeartbeatRequest(epoch=self._epoch, hung_step_id=beat.step_id)
                self._patience.cut_off()
                await call.write(hung)
                return (
                    f"step {beat.step_id} hangs: it has run for {1e-3 * beat.running_ms:.1f} s, "
                    f"its limit is {limit_s:.1f} s"
                )
        return "it ended its heartbeats"

    async def _beat(self, call: Any) -> None:
        while True:
            await call.write(worker_pb2.HeartbeatRequest(epoch=self._epoch))
            await asyncio.sleep(INTERVAL_S)
