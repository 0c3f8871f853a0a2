"""Asking a scheduler to finish what it has, and how far that is."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from quire.contract.errors import UnavailableError
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.call_errors import error_from_rpc
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far the draining of a cell is.

    Attributes:
        num_moved: requests that went on in other cells.
        num_finished: requests that ended here.
        num_left: requests that run or wait.
        seconds: since it began.
    """

    num_moved: int
    num_finished: int
    num_left: int
    seconds: float


async def drain(
    scheduler: str, tls: TlsFiles | None, *, move: bool = True, timeout_s: int = 0
) -> AsyncIterator[DrainProgress]:
    """Have a cell take nothing new and end, and yield how far that is; at last, what came of it.

    Args:
        scheduler: its address.
        tls: certificate of an operator; None speaks in the clear.
        move: have routers move what other cells may continue, and yield twice a second; else yield
            the end alone.
        timeout_s: for what is not moved; 0 for the scheduler's own.

    Raises:
        QuireError: the scheduler does not answer, or was lost; its cause is the error of the call.
    """
    async with open_channel(scheduler, tls, Role.SCHEDULER) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        began, total = time.monotonic(), None
        try:
            async for at in stub.Drain(scheduler_pb2.DrainRequest(move=move, timeout_s=timeout_s)):
                if total is None:
                    total = at.num_unfinished + at.num_moved
                num_finished = max(0, total - at.num_moved - at.num_unfinished)
                seconds = time.monotonic() - began
                yield DrainProgress(at.num_moved, num_finished, at.num_unfinished, seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
    if total is None:
        raise UnavailableError(f"scheduler {scheduler} ended the call without a result")
