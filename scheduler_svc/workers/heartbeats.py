"""Heartbeats between a scheduler and one worker."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from quire.contract.errors import QuireError, StaleEpochError, UnavailableError
from quire.rpc.call_errors import sent_error
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
        start: word that this scheduler has drawn as it started.
        patience: with its steps.
        on_lost: called with the reason: StaleEpochError if another scheduler has the worker.
    """

    def __init__(
        self,
        method: Callable[[], Any],  # grpc.aio.StreamStreamCall, generic in its stub only
        peer_timeout_s: float,
        epoch: int,
        start: str,
        patience: Patience,
        on_lost: Callable[[QuireError], None],
    ) -> None:
        self._method = method
        self._watch = PeerWatch(peer_timeout_s)
        self._epoch, self._start = epoch, start
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
            why: QuireError = UnavailableError(
                reader.result() if reader.done() else silence.result()
            )
        except grpc.aio.AioRpcError as error:
            why = UnavailableError(f"{error.code().name}: {error.details()}")
            if isinstance(sent := sent_error(error), StaleEpochError):
                why = sent
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._on_lost(why)

    async def _read(self, call: Any) -> str:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._watch.began()
            beat = running_step_from_proto(message)
            limit_s = self._patience.limit_s(beat)
            # A rank that waits for another hangs by no fault of its own.
            if beat.step_id and not beat.waits_for_ranks and beat.running_ms > 1000 * limit_s:
                self._patience.cut_off()
                await call.write(self._request(hung_step_id=beat.step_id))
                return (
                    f"step {beat.step_id} hangs: it has run for {1e-3 * beat.running_ms:.1f} s, "
                    f"its limit is {limit_s:.1f} s"
                )
        return "it ended its heartbeats"

    async def _beat(self, call: Any) -> None:
        while True:
            await call.write(self._request())
            await asyncio.sleep(INTERVAL_S)

    def _request(self, hung_step_id: int = 0) -> worker_pb2.HeartbeatRequest:
        return worker_pb2.HeartbeatRequest(
            epoch=self._epoch, scheduler_start=self._start, hung_step_id=hung_step_id
        )
