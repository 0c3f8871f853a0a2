"""The client of one worker: its channel, its calls and its Execute stream."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import Message

from quire.contract.addresses import split_address
from quire.contract.block_shipping import ImportOrder, ImportResult
from quire.contract.engine_options import CacheOptions
from quire.contract.errors import (
    ConfigError,
    ModelLoadError,
    ProtocolDiffersError,
    QuireError,
    StaleEpochError,
    UnavailableError,
)
from quire.contract.steps import StepGap, StepResult
from quire.contract.versions import check_protocol
from quire.contract.workers import (
    CacheProfile,
    CacheSpec,
    HostCache,
    LoadRequest,
    LoadResponse,
    WorkerDescription,
    WorkerMirror,
)
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.call_errors import sent_error, was_sent
from quire.rpc.call_metadata import PROTOCOL_METADATA
from quire.security.handshake import explain
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.block_shipping import import_order_to_proto, import_result_from_proto
from quire.wire.caches import (
    cache_profile_from_proto,
    cache_spec_to_proto,
    host_cache_from_proto,
    profile_to_proto,
)
from quire.wire.mirror import mirror_from_proto
from quire.wire.worker import (
    description_from_proto,
    execute_response_from_proto,
    load_request_to_proto,
    load_response_from_proto,
)
from scheduler_svc.workers.heartbeats import WorkerHeartbeats
from scheduler_svc.workers.patience import Patience

DESCRIBE_TIMEOUT_S = 5.0

# Generic in its stub only.
ExecuteCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, worker_pb2.ExecuteResponse]"
Result = TypeVar("Result")

_EXECUTE_METHOD = f"/{worker_pb2.DESCRIPTOR.services_by_name['WorkerService'].full_name}/Execute"
# Errors of a worker that another attempt cannot change.
_FINAL_ERRORS = (ModelLoadError, ConfigError, StaleEpochError)
# Errors of the connection, or of a worker that ends.
_CONNECTION_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)


class WorkerFailedError(UnavailableError):
    """A worker answered with an unforeseen error.

    Once it has served, it counts as lost, since a new start may cure it. A worker that fails so
    before it ever served would do it again.
    """


class WorkerClient:
    """A client of one worker.

    Every method raises the QuireError that the worker sent, WorkerFailedError for any other error
    that it sent, and UnavailableError for a lost connection, a broken stream and whatever else did
    not come from the worker. Of a stream's errors only StaleEpochError comes as it was sent.

    Args:
        rank: of the worker among those that share the model.
        address: "host:port".
        may_be_late: whether to wait a few seconds for a worker that is just starting there.
        tls: certificate of this scheduler; None speaks in the clear.

    Attributes:
        is_reachable: whether the worker answered the last call.
    """

    def __init__(
        self, rank: int, address: str, may_be_late: bool = True, tls: TlsFiles | None = None
    ) -> None:
        self.rank = rank
        self.address = address
        self.is_reachable = False
        self._may_be_late = may_be_late
        self._channel = open_channel(address, tls, Role.WORKER)
        self._stub = cast(
            "worker_pb2_grpc.WorkerServiceAsyncStub",
            worker_pb2_grpc.WorkerServiceStub(self._channel),
        )
        # Steps go to every rank as the same bytes, serialised once.
        self._execute = self._channel.stream_stream(
            _EXECUTE_METHOD,
            request_serializer=None,
            response_deserializer=worker_pb2.ExecuteResponse.FromString,
        )
        self._stream: ExecuteCall | None = None
        self._heartbeats: WorkerHeartbeats | None = None
        self._calls: set[Any] = set()
        # Why heartbeats ended, when they did before the connection.
        self._failure: QuireError | None = None

    async def describe(self) -> WorkerDescription:
        """Ask what the worker is.

        Raises:
            ProtocolDiffersError: this scheduler and the worker do not understand each other.
        """
        response = await self._call(
            self._stub.Describe,
            worker_pb2.DescribeRequest(),
            wait_for_ready=self._may_be_late,
            timeout=DESCRIBE_TIMEOUT_S,
            metadata=PROTOCOL_METADATA,
        )
        description = description_from_proto(response)
        check_protocol(description.protocol_version, f"worker {self.address}")
        return description

    @property
    def host(self) -> str:
        """Address of the worker's machine, as this scheduler reaches it."""
        return split_address(self.address)[0]

    async def open_rendezvous(self, epoch: int) -> str:
        """Have the worker await the other ranks on its own machine; return "host:port"."""
        response: worker_pb2.OpenRendezvousResponse = await self._call(
            self._stub.OpenRendezvous,
            worker_pb2.OpenRendezvousRequest(epoch=epoch, host=self.host),
        )
        return response.distributed_init_address

    async def load_model(self, request: LoadRequest) -> LoadResponse:
        """Load this rank's slice; takes as long as it takes, while pings watch the connection."""
        message = load_request_to_proto(request)
        return load_response_from_proto(await self._call(self._stub.LoadModel, message))

    async def profile_cache(
        self, epoch: int, options: CacheOptions, num_at_host: int
    ) -> CacheProfile:
        """Ask how many blocks fit where so many workers share the memory of a machine."""
        message = profile_to_proto(epoch, options, num_at_host)
        return cache_profile_from_proto(await self._call(self._stub.ProfileCache, message))

    async def init_cache(self, epoch: int, spec: CacheSpec) -> HostCache:
        """Allocate the cache, or keep it; the worker forgets every sequence."""
        message = cache_spec_to_proto(epoch, spec)
        return host_cache_from_proto(await self._call(self._stub.InitCache, message))

    async def mirror(self, epoch: int, start: str) -> WorkerMirror:
        """Ask what the worker holds; it drops the steps of older epochs and other starts."""
        message = worker_pb2.MirrorRequest(epoch=epoch, scheduler_start=start)
        return mirror_from_proto(await self._call(self._stub.Mirror, message))

    async def import_blocks(self, epoch: int, order: ImportOrder) -> ImportResult:
        """Fill blocks with what another worker holds; it keeps to the limit of the order."""
        message = import_order_to_proto(epoch, order)
        return import_result_from_proto(await self._call(self._stub.ImportBlocks, message))

    async def _call(
        self, method: Callable[..., Any], request: Message, **options: Any
    ) -> Any:  # the response type of `method`
        self._raise_failure()
        call = method(request, **options)
        self._calls.add(call)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        except asyncio.CancelledError:
            self._raise_failure()
            raise
        finally:
            self._calls.discard(call)
        self.is_reachable = True
        return response

    # ---------------------------------------------------------------- heartbeats

    def open_heartbeats(
        self, peer_timeout_s: float, epoch: int, start: str, patience: Patience
    ) -> None:
        """Watch the worker until `cancel_stream`: when it is lost, calls and stream end."""
        self._heartbeats = WorkerHeartbeats(
            self._stub.Heartbeat, peer_timeout_s, epoch, start, patience, self._lose
        )

    def _lose(self, why: QuireError) -> None:
        self._failure = type(why)(f"worker {self.address} is lost: {why.message}")
        self.is_reachable = False
        for call in (*self._calls, *([self._stream] if self._stream else [])):
            call.cancel()

    def _raise_failure(self) -> None:
        """Raise why heartbeats ended what this task waited for, unless it was cancelled itself."""
        task = asyncio.current_task()
        if self._failure is not None and not (task and task.cancelling()):
            raise self._failure

    def check_alive(self) -> None:
        """Raise UnavailableError if heartbeats have found the worker lost."""
        self._raise_failure()

    # ---------------------------------------------------------------- Execute

    def open_stream(self, on_end: Callable[[], None]) -> None:
        """Open the Execute stream; `on_end` is called if it ends other than by `cancel_stream`."""
        stream = self._execute()
        stream.add_done_callback(lambda _: self._stream_ended(stream, on_end))
        self._stream = stream
        if self._failure is not None:
            on_end()

    def _stream_ended(self, stream: ExecuteCall, on_end: Callable[[], None]) -> None:
        if self._stream is stream:
            self.is_reachable = False
            on_end()

    async def raise_end(self) -> None:
        """Raise why the stream has ended, no step being in flight; return if it has not.

        Raises:
            StaleEpochError: another scheduler has the worker.
            UnavailableError: the worker is lost.
        """
        self._raise_failure()
        if self._stream is not None and self._stream.done():
            await self.receive()

    async def send(self, request: bytes) -> None:
        """Send a serialised ExecuteRequest; returns once it is on its way."""
        assert self._stream is not None, "the stream is open"
        self._raise_failure()
        try:
            # A stream that has ended cannot be written to; a read raises the reason.
            with suppress(asyncio.InvalidStateError):
                await self._stream.write(request)
        except grpc.aio.AioRpcError as error:
            raise self._stream_error(error) from error
        except asyncio.CancelledError:
            self._raise_failure()
            raise

    async def receive(self) -> StepResult:
        """Return the result of the step sent last."""
        assert self._stream is not None, "the stream is open"
        try:
            response = await self._stream.read()
        except grpc.aio.AioRpcError as error:
            raise self._stream_error(error) from error
        except asyncio.CancelledError:
            self._raise_failure()
            raise
        if response is grpc.aio.EOF:
            raise UnavailableError(f"worker {self.address} closed its stream")
        answer = execute_response_from_proto(response)
        if isinstance(answer, StepGap):
            raise UnavailableError(
                f"worker {self.address} expected step {answer.expected_step_id}, "
                f"received {answer.received_step_id}"
            )
        return answer

    def cancel_stream(self) -> None:
        """End the stream and heartbeats, if open. Abandoned ones would live on."""
        if self._heartbeats is not None:
            self._heartbeats.stop()
            self._heartbeats = None
        self._failure = None
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def close(self) -> None:
        """End the stream and close the channel."""
        self.cancel_stream()
        await self._channel.close()

    # ---------------------------------------------------------------- errors

    def _error(self, error: grpc.aio.AioRpcError) -> QuireError:
        text = f"{error.code().name}: {explain(error.details() or '')}"
        sent = sent_error(error)
        if isinstance(sent, (*_FINAL_ERRORS, ProtocolDiffersError)):
            return sent
        if not was_sent(error) or error.code() in _CONNECTION_CODES:
            self.is_reachable = False
            return UnavailableError(f"worker {self.address} is unreachable ({text})")
        return WorkerFailedError(f"worker {self.address} failed ({text})")

    def _stream_error(self, error: grpc.aio.AioRpcError) -> QuireError:
        # gRPC may carry a stream that the server has not seen over to a worker that starts anew at
        # this address: that one has no cache yet, and is to be formed like any that was lost.
        failure = self._error(error)
        if isinstance(failure, (StaleEpochError, UnavailableError)):
            return failure
        return WorkerFailedError(f"worker {self.address} failed ({failure.message})")


async def answers(rank: int, address: str, tls: TlsFiles | None = None) -> bool:
    """Return whether a worker answers at `address`."""
    worker = WorkerClient(rank, address, may_be_late=False, tls=tls)
    try:
        await worker.describe()
    except UnavailableError:
        return False
    finally:
        await worker.close()
    return True


async def on_all(
    workers: Sequence[WorkerClient], call: Callable[[WorkerClient], Coroutine[Any, Any, Result]]
) -> list[Result]:
    """Run `call` for every worker at once; a failure cancels the others, which may wait for it."""
    if len(workers) == 1:
        return [await call(workers[0])]
    tasks = [asyncio.create_task(call(worker)) for worker in workers]
    try:
        # Not gather, which raises a failure in place of a cancellation that comes in the same turn
        # of the loop: the scheduler would form its workers again instead of ending.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
