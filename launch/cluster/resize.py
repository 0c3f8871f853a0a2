"""Asking a scheduler for other workers, and `quire serve` for another number or for new ones."""

from collections.abc import Callable

import grpc

from quire.contract.errors import UnavailableError
from quire.contract.resizing import ResizePhase, ResizeProgress
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.call_errors import error_from_rpc, sent_error
from quire.v1 import cluster_pb2, cluster_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from quire.wire.resizing import resize_progress_from_proto

PHASES = {
    ResizePhase.LOADING: "the new workers load the model; the old ones serve",
    ResizePhase.SWITCHED: "the new workers serve",
}


class LostCallError(UnavailableError):
    """A scheduler was lost before it said what became of a resize."""


async def ask_scheduler(
    address: str,
    workers: tuple[str, ...],
    timeout_s: int,
    tls: TlsFiles | None,
    say: Callable[[str], None],
    on_switched: Callable[[], None] = lambda: None,
) -> ResizeProgress:
    """Have the workers of a cell replaced by others, which run already.

    Args:
        address: of its scheduler.
        workers: their addresses, in order of rank.
        timeout_s: until they must be in use; 0 for 300 s.
        tls: certificate of an operator; None speaks in the clear.
        say: called with a line about what has begun.
        on_switched: called when they are in use.

    Raises:
        LostCallError: the scheduler ended, or cannot be reached.
        QuireError: those in use go on.
    """
    request = scheduler_pb2.ResizeRequest(workers=workers, timeout_s=timeout_s)
    async with open_channel(address, tls, Role.SCHEDULER) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        try:
            async for message in stub.Resize(request):
                at = resize_progress_from_proto(message)
                if at.phase is ResizePhase.DONE:
                    return at
                if at.phase is ResizePhase.SWITCHED:
                    on_switched()
                say(PHASES[at.phase])
        except grpc.aio.AioRpcError as error:
            if sent_error(error) is None:
                raise LostCallError(error_from_rpc(error).message) from None
            raise error_from_rpc(error) from None
    raise LostCallError(f"scheduler {address} ended the call without a result")


async def ask_cluster(
    address: str, size: int, timeout_s: int, tls: TlsFiles | None, say: Callable[[str], None]
) -> ResizeProgress:
    """Have `quire serve` change the number of workers of its cell.

    Args:
        address: of its control port.
        size: workers to share the model.
        timeout_s: until they must be in use; 0 for 300 s.
        tls: certificate of an operator; None speaks in the clear.
        say: called with a line about what has begun.

    Raises:
        QuireError: the old workers go on.
    """
    request = cluster_pb2.ClusterServiceResizeRequest(
        tensor_parallel_size=size, timeout_s=timeout_s
    )
    async with open_channel(address, tls, Role.OPERATOR) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        try:
            async for at in stub.Resize(request):
                if at.HasField("result"):
                    return resize_progress_from_proto(at.result)
                say(at.progress)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
    raise UnavailableError(f"{address} ended the call without a result")


async def ask_for_roll(
    address: str, timeout_s: int, tls: TlsFiles | None, say: Callable[[str], None]
) -> None:
    """Have `quire serve` replace its processes with the code that is installed now.

    Args:
        address: of its control port.
        timeout_s: for requests that must be finished first; 0 for 300 s.
        tls: certificate of an operator; None speaks in the clear.
        say: called with a line about each that was replaced.

    Raises:
        QuireError: those that were not replaced yet keep running.
    """
    async with open_channel(address, tls, Role.OPERATOR) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        try:
            async for at in stub.Roll(cluster_pb2.ClusterServiceRollRequest(timeout_s=timeout_s)):
                say(at.progress)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
