"""One Session stream with the scheduler of a cell, opened again whenever it breaks."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeAlias, cast

import grpc

from quire.contract.errors import DrainingError, OverloadedError
from quire.contract.outputs import CellState, CellStatus, ModelInfo
from quire.contract.sessions import (
    Cancellation,
    PrefixDigestDelta,
    Queued,
    Refused,
    RouterMessage,
    SessionEvent,
    StepOutputs,
    Welcome,
)
from quire.observe.log import failure_of, get_logger
from quire.rpc import Role, TlsFiles, open_channel
from quire.security.handshake import handshake_failure
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.wire.scheduler import session_event_from_proto, session_request_to_proto
from router.cells.choice import Assignment, CellChoice, ReportedLoad
from router.requests.stream import RequestStream

# How long to wait for a connection before the log has the reason that there is none.
CONNECT_S = 5.0
FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0

# Generic in its stub only.
SessionCall: TypeAlias = (
    "grpc.aio.StreamStreamCall[scheduler_pb2.SessionRequest, scheduler_pb2.SessionResponse]"
)

log = get_logger()


class CellOwner(Protocol):
    """Receives what happens to a cell. Called on the event loop; must not wait."""

    def cell_changed(self) -> None:
        """A cell connected, disconnected or reported its state."""

    def cell_connected(self, cell: "CellSession") -> CellChoice["CellSession"]:
        """A cell is connected. Returns among which cells it is to be chosen from now on."""

    def cell_ready(self) -> None:
        """A cell takes requests, and has joined those that may be chosen."""

    def cell_disconnected(self, cell: "CellSession") -> None:
        """The session of a cell broke."""

    def streams_lost(self, streams: Iterable[RequestStream]) -> None:
        """These requests need a new place."""

    def stream_refused(
        self, stream: RequestStream, cell: "CellSession", error: OverloadedError
    ) -> None:
        """A new request found a cell's queue full."""

    def stream_postponed(self, stream: RequestStream, retry_after_ms: int) -> None:
        """A request that was queued before found its new scheduler's queue full."""


class CellSession:
    """A scheduler as this router sees it, and the requests it runs for us.

    It joins the cells that may be chosen while it is connected and not draining, and reports to
    their CellChoice what becomes of the requests that were placed here.

    Requests go over the wire as numbers, a new one for each submission, so that no message about an
    earlier one can be taken for this one.
    """

    def __init__(self, address: str, owner: CellOwner, tls: TlsFiles | None = None):
        """Describe a cell; `run` connects to it.

        Args:
            address: of its scheduler, "host:port".
            owner: receives changes.
            tls: certificate of this router; None speaks in the clear.
        """
        self._tls = tls
        # Why there is no session, as the log has it.
        self._refusal = ""
        self.address = address
        self.connected = False
        self.model: ModelInfo | None = None
        self.state = CellState()
        self._owner = owner
        self._numbers = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._number_of: dict[RequestStream, int] = {}
        self._assignments: dict[int, Assignment[CellSession]] = {}
        # Requests without a token so far.
        self._computing: set[int] = set()
        # Set when it connects, before anything can be submitted.
        self._choice: CellChoice[CellSession]
        # At most one submit and one cancel per open request.
        self._outgoing: deque[RouterMessage] = deque()
        self._has_outgoing = asyncio.Event()

    @property
    def status(self) -> CellStatus:
        """What WatchCluster reports about this cell."""
        return CellStatus(self.address, self.connected, self.model, self.state)

    def submit(self, stream: RequestStream, assignment: "Assignment[CellSession]") -> None:
        """Hand a request that was placed here to the scheduler, with its tokens so far."""
        number = next(self._numbers)
        self._streams[number] = stream
        self._number_of[stream] = number
        self._assignments[number] = assignment
        self._computing.add(number)
        stream.ledger.submitted()
        self._send(stream.submission(number))

    def cancel(self, stream: RequestStream) -> None:
        """Have the scheduler drop a request, if it runs there, and ignore its further tokens."""
        number = self._number_of.get(stream)
        if number is None:
            return
        self._forget(number)
        self._cancellation().request_numbers.append(number)

    def _cancel_sequence(self, number: int, sequence_index: int) -> None:
        """Have the scheduler drop one sequence of a request."""
        self._cancellation().sequences.append((number, sequence_index))

    def _cancellation(self) -> Cancellation:
        """Return the message that will name what to drop: the last one if it is not sent yet."""
        last = self._outgoing[-1] if self._outgoing else None
        if not isinstance(last, Cancellation):
            last = Cancellation()
            self._send(last)
        return last

    def _send(self, message: RouterMessage) -> None:
        self._outgoing.append(message)
        self._has_outgoing.set()

    def _forget(self, number: int) -> RequestStream:
        stream = self._streams.pop(number)
        del self._number_of[stream]
        self._computing.discard(number)
        self._choice.ended(self._assignments.pop(number))
        return stream

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        async with open_channel(self.address, self._tls, Role.SCHEDULER) as channel:
            stub = cast(
                "scheduler_pb2_grpc.SchedulerServiceAsyncStub",
                scheduler_pb2_grpc.SchedulerServiceStub(channel),
            )
            while True:
                is_ready = await _is_ready(channel)
                try:
                    await self._session(stub)
                    reason = "closed by the scheduler"
                except grpc.aio.AioRpcError as error:
                    cause = handshake_failure(error.details() or "")
                    reason = cause or f"{error.code().name}: {error.details()}"
                except Exception as error:
                    # Whatever it was, the requests are safe here and can continue over a new
                    # session.
                    log.error("session_failed", address=self.address, **failure_of(error))
                    reason = "unexpected error"
                if self.connected:
                    backoff_s = FIRST_BACKOFF_S
                    self._disconnect(reason)
                elif reason != self._refusal:
                    self._refusal = reason
                    log.warning("scheduler_refuses", address=self.address, reason=reason)
                if is_ready:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _session(self, stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> None:
        """Run one session until it ends."""
        call = stub.Session()
        writer = asyncio.create_task(self._write(call))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._receive(session_event_from_proto(message))
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: SessionCall) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._outgoing:
                await call.write(session_request_to_proto(self._outgoing.popleft()))

    def _receive(self, event: SessionEvent | None) -> None:
        match event:
            case StepOutputs():
                self._step(event)
            case Queued(number, seed):
                if number in self._streams:
                    self._choice.queued(self._assignments[number])
                    assert self.model is not None, "connected"
                    self._streams[number].mark_queued(
                        seed, self.model.numerics_id, self.model.max_model_len
                    )
            case Refused():
                self._refuse(event)
            case CellState():
                self._report(event)
            case PrefixDigestDelta():
                self._choice.update_digest(self, event.added, event.removed)
            case Welcome():
                self._connect(event)

    def _connect(self, welcome: Welcome) -> None:
        self.model = welcome.model
        self.connected = True
        self._refusal = ""
        log.info("scheduler_connected", address=self.address, epoch=welcome.cell_state.epoch)
        self._choice = self._owner.cell_connected(self)
        state = welcome.cell_state
        if not state.draining:
            self._choice.join(self, state.block_size)
            self._choice.update_digest(self, welcome.block_hashes, ())
        self._report(state)
        if not state.draining:
            self._owner.cell_ready()

    def _report(self, state: CellState) -> None:
        self.state = state
        if state.draining:
            self._choice.leave(self)
        else:
            load = ReportedLoad(state.outstanding_tokens, state.num_free_blocks)
            self._choice.report(self, load)
        self._owner.cell_changed()

    def _disconnect(self, reason: str) -> None:
        lost = list(self._streams.values())
        self._streams.clear()
        self._number_of.clear()
        self._assignments.clear()
        self._computing.clear()
        self._outgoing.clear()
        self.connected = False
        self._choice.leave(self)
        log.warning("scheduler_lost", address=self.address, reason=reason, num_requests=len(lost))
        self._owner.cell_disconnected(self)
        self._owner.streams_lost(lost)

    def _step(self, outputs: StepOutputs) -> None:
        """Deliver the tokens of a step; unknown numbers were cancelled while the step ran."""
        streams = self._streams
        # First: tokens may end their requests.
        for number, breakdown in outputs.time_breakdowns:
            if number in streams:
                streams[number].ledger.reported(breakdown)
        for number, part in outputs.prompt_logprobs:
            if number in streams:
                streams[number].push_prompt_logprobs(part.first_position, part.logprobs)
        tokens = zip(
            outputs.request_numbers, outputs.sequence_indices, outputs.token_ids, strict=True
        )
        for place, (number, sequence_index, token_id) in enumerate(tokens):
            stream = streams.get(number)
            if stream is None:
                continue
            if number in self._computing:
                self._computing.remove(number)
                self._choice.computed(self._assignments[number])
            logprobs = outputs.logprobs[place] if outputs.logprobs else None
            if stream.push_token(sequence_index, token_id, logprobs):
                if stream.ended:
                    self.cancel(stream)
                else:
                    self._cancel_sequence(number, sequence_index)
        ends = zip(
            outputs.finished_request_numbers,
            outputs.finished_sequence_indices,
            outputs.finish_reasons,
            strict=True,
        )
        for number, sequence_index, reason in ends:
            if number in streams:
                streams[number].finish_sequence(sequence_index, reason)
                self._forget_ended(number)
        for number, hypotheses in outputs.hypotheses:
            if number in streams:
                streams[number].finish_beams(hypotheses)
                self._forget_ended(number)

    def _forget_ended(self, number: int) -> None:
        if self._streams[number].ended:
            self._forget(number)

    def _refuse(self, refused: Refused) -> None:
        if refused.request_number not in self._streams:
            return
        stream = self._forget(refused.request_number)
        error = refused.error
        if isinstance(error, DrainingError):
            # The refusal may come before the state that reports draining; else the request would
            # come back here.
            self._choice.leave(self)
            self._owner.streams_lost([stream])
        elif not isinstance(error, OverloadedError):
            stream.fail(error)
        elif stream.was_queued:
            self._owner.stream_postponed(stream, error.retry_after_ms)
        else:
            self._owner.stream_refused(stream, self, error)


async def _is_ready(channel: grpc.aio.Channel) -> bool:
    """Wait for a connection, and return whether there is one; a call then fails with the reason."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await channel.channel_ready()
    except TimeoutError:
        return False
    return True
