"""One Session stream with the scheduler of a cell, opened again whenever it breaks."""

import asyncio
import itertools
import operator
from collections import deque
from collections.abc import Collection, Iterable
from typing import cast

import grpc

from quire.contract.errors import (
    DrainingError,
    OverloadedError,
    ProtocolDiffersError,
    TooLargeError,
    UnavailableError,
)
from quire.contract.outputs import CellState, CellStatus, ModelInfo
from quire.contract.sessions import (
    BlockSource,
    Cancellation,
    Heartbeat,
    PrefixDigestDelta,
    Queued,
    Refused,
    RouterMessage,
    SessionEvent,
    StepOutputs,
    Suspected,
    Welcome,
)
from quire.contract.versions import UNVERSIONED
from quire.observe.log import failure_of, get_logger
from quire.rpc import Role, TlsFiles, open_channel
from quire.rpc.heartbeat import INTERVAL_S, PeerWatch
from quire.security.handshake import handshake_failure
from quire.v1 import scheduler_pb2_grpc
from quire.wire.scheduler import session_event_from_proto, session_request_to_proto
from router.cells.choice import Assignment, CellChoice, ReportedLoad
from router.cells.handshake import SessionCall, check_welcome, is_connected, open_session
from router.cells.owner import CellOwner
from router.requests.stream import RequestStream

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0

log = get_logger()


class CellSession:
    """A scheduler as this router sees it, and the requests it runs for us.

    It joins the cells that may be chosen while it is connected, has its workers and is not
    draining, and reports to their CellChoice what becomes of the requests that were placed here.

    Requests go over the wire as numbers, a new one for each submission, so that no message about an
    earlier one can be taken for this one.

    Attributes:
        refusal: why there has been no session so far; empty if there is or was one.
        protocol_version: of its scheduler, in the last session.
    """

    def __init__(
        self, address: str, owner: CellOwner, peer_timeout_s: float, tls: TlsFiles | None = None
    ):
        """Describe a cell; `run` connects to it.

        Args:
            address: of its scheduler, "host:port".
            owner: receives changes.
            peer_timeout_s: how long the scheduler may be silent before the session ends.
            tls: certificate of this router; None speaks in the clear.
        """
        self._tls = tls
        self._peer_timeout_s = peer_timeout_s
        self.refusal = ""
        self.protocol_version = UNVERSIONED
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

    def is_no_larger(self, other: "CellSession") -> bool:
        """Return whether what is too large for the other cell is too large for this one."""
        return all(map(operator.le, self._limits, other._limits))

    @property
    def _limits(self) -> tuple[int, int, int]:
        max_model_len = self.model.max_model_len if self.model else 0
        num_slots = self.state.num_blocks * self.state.block_size
        return num_slots, self.state.max_num_seqs, max_model_len

    @property
    def streams(self) -> Collection[RequestStream]:
        """The requests that are here."""
        return self._streams.values()

    def submit(self, stream: RequestStream, assignment: "Assignment[CellSession]") -> None:
        """Hand a request that was placed here to the scheduler, with its tokens so far."""
        number = next(self._numbers)
        self._streams[number] = stream
        self._number_of[stream] = number
        self._assignments[number] = assignment
        self._computing.add(number)
        stream.ledger.submitted()
        self._send(stream.submission(number, len(self._choice)))
        stream.block_source = ()  # of its last move

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
                is_ready = await is_connected(channel)
                try:
                    await self._session(stub)
                    reason = "closed by the scheduler"
                except grpc.aio.AioRpcError as error:
                    cause = handshake_failure(error.details() or "")
                    reason = cause or f"{error.code().name}: {error.details()}"
                except (UnavailableError, ProtocolDiffersError) as error:
                    reason = error.message
                except Exception as error:
                    # Whatever it was, the requests are safe here and can continue over a new
                    # session.
                    log.error("session_failed", address=self.address, **failure_of(error))
                    reason = "unexpected error"
                if self.connected:
                    backoff_s = FIRST_BACKOFF_S
                    self._disconnect(reason)
                elif reason != self.refusal:
                    self.refusal = reason
                    log.warning("scheduler_refuses", address=self.address, reason=reason)
                if is_ready:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _session(self, stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub") -> None:
        """Run one session until it ends."""
        call = open_session(stub)
        watch = PeerWatch(self._peer_timeout_s)
        reader = asyncio.create_task(self._read(call, watch))
        silence = asyncio.create_task(watch.until_silent())
        tasks = [reader, silence, *map(asyncio.create_task, (self._write(call), self._beat()))]
        try:
            await asyncio.wait((reader, silence), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                raise UnavailableError(silence.result())
            reader.result()
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: SessionCall, watch: PeerWatch) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            event = session_event_from_proto(message)
            if isinstance(event, Heartbeat):
                watch.began()
            else:
                watch.heard()
                self._receive(event)

    async def _beat(self) -> None:
        while True:
            # One is enough for a scheduler that does not read.
            if self.connected and not self._outgoing:
                self._send(Heartbeat())
            await asyncio.sleep(INTERVAL_S)

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
            case Queued(number, seed) if number in self._streams:
                self._choice.queued(self._assignments[number])
                assert self.model is not None, "connected"
                self._streams[number].mark_queued(seed, self.model.numerics_id)
            case Refused():
                self._refuse(event)
            case Suspected(number, until, num_lost_alone) if number in self._streams:
                stream = self._streams[number]
                stream.suspect_until, stream.num_lost_alone = until, num_lost_alone
            case BlockSource(addresses):
                for stream in self._streams.values():
                    stream.block_source = addresses
            case CellState():
                self._report(event)
            case PrefixDigestDelta():
                self._choice.update_digest(self, event.added, event.removed)
            case Welcome():
                self._connect(event)

    def _connect(self, welcome: Welcome) -> None:
        check_welcome(welcome, self.address)
        self.model = welcome.model
        self.protocol_version = welcome.protocol_version
        self.connected = True
        self.refusal = ""
        log.info("scheduler_connected", address=self.address, epoch=welcome.cell_state.epoch)
        self._choice = self._owner.cell_connected(self)
        self._report(welcome.cell_state, welcome.block_hashes)

    def _report(self, state: CellState, block_hashes: Iterable[int] = ()) -> None:
        """Take the state of the cell.

        Args:
            state: as reported.
            block_hashes: that its cache holds where it joins. With its workers it has lost them
                all: what it holds after that is reported as it comes.
        """
        hands_over = state.hands_over and not self.state.hands_over
        self.state = state
        if not state.takes_requests:
            self._choice.leave(self)
            if hands_over:
                self._owner.cell_hands_over()
        else:
            joins = self not in self._choice
            if joins:
                self._choice.join(self, state.block_size)
                self._choice.update_digest(self, block_hashes, ())
            load = ReportedLoad(state.outstanding_tokens, state.num_free_blocks)
            self._choice.report(self, load)
            if joins:
                self._owner.cell_ready()
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
        for number, breakdown in outputs.time_breakdowns:  # first: tokens may end their requests
            if number in streams:
                streams[number].ledger.reported(breakdown)
        for number, num_tokens in outputs.cached_tokens:
            if number in streams:
                streams[number].num_cached_tokens = num_tokens
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
        for number, vector in outputs.vectors:
            if number in streams:
                streams[number].push_vector(vector)
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
        elif isinstance(error, TooLargeError):
            self._owner.stream_too_large(stream, self, error)
        elif not isinstance(error, OverloadedError):
            stream.fail(error)
        elif stream.has_begun:
            self._owner.stream_postponed(stream, error.retry_after_ms)
        else:
            self._owner.stream_refused(stream, self, error)
