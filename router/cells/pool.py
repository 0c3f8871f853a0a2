"""All the cells behind this router: which there are, and what happens when one comes or is lost.

The router holds everything that a request needs to continue: prompt, parameters, seed and the
tokens so far. When a session breaks, its requests are submitted again, to any cell of the same
numerics id or to the same one once it is back, and continue with the very tokens they would have
had. Their clients notice a pause and nothing else.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable
from dataclasses import replace

from quire.contract.errors import (
    OverloadedError,
    RequestExistsError,
    SupersededError,
    TooLargeError,
)
from quire.contract.outputs import CellStatus, FinishReason, ModelInfo
from quire.observe.log import get_logger
from router.cells.choice import Assignment, CellChoice, RoutingPolicy
from router.cells.discovery import follow_names
from router.cells.handshake import why_none_is_connected
from router.cells.served import find_served, numerics_lost, served_models, unavailable, unfit
from router.cells.session import CellSession
from router.cells.submission import SubmissionReason
from router.config import RouterConfig
from router.requests.stream import RequestStream

# Full queues that a new request is tried at before its client gets an error.
MAX_REFUSALS = 3

log = get_logger()


class CellPool:
    """The cells and the open requests of a router.

    Attributes:
        submissions: requests handed to cells so far, by why.
        num_resumed_by_prefix: resumed ones of them, placed where part of it was expected.
        paused: requests that run nowhere since their clients do not read.
        requests: those that are open, by id.
    """

    def __init__(self, config: RouterConfig, text_id: str = ""):
        """Prepare to connect.

        Args:
            config: names the cells.
            text_id: of this router's tokenizer.
        """
        self.submissions: Counter[SubmissionReason] = Counter()
        self.num_resumed_by_prefix = 0
        self.paused: set[RequestStream] = set()
        self.requests: dict[str, RequestStream] = {}
        self._config = config
        self._text_id = text_id
        # By address, in the order in which they became known.
        self._cells: dict[str, CellSession] = {}
        # Of each model, the cells that take requests.
        self._choices: dict[str, CellChoice[CellSession]] = {}
        # Cells that names no longer resolve to; they stay as long as their session.
        self._vanished: set[str] = set()
        # Where each open request was submitted last.
        self._cell_of: dict[RequestStream, CellSession] = {}
        # Cells whose queue was full, or that are too small.
        self._refused_by: dict[RequestStream, set[CellSession]] = {}
        # Requests that run nowhere now, and the timer that will fail them or place them again.
        self._waiting: dict[RequestStream, asyncio.TimerHandle] = {}
        # Set, and replaced by a new one, at every change of a cell.
        self._changed = asyncio.Event()
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to connect to every cell, and to look for them where they are named."""
        config = self._config
        for address in config.scheduler_addresses:
            self._add(address)
        if config.scheduler_dns:
            self._start_task(
                follow_names(config.scheduler_dns, config.dns_interval_s, self._names_resolved)
            )

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _add(self, address: str) -> None:
        cell = self._cells[address] = CellSession(
            address, self, self._config.peer_timeout_s, self._config.tls
        )
        self._sessions[address] = self._start_task(cell.run())

    def _remove(self, address: str) -> None:
        self._vanished.discard(address)
        del self._cells[address]
        self._sessions.pop(address).cancel()
        log.info("cell_removed", address=address)
        self.cell_changed()

    def _names_resolved(self, addresses: Collection[str]) -> None:
        """Names resolve to these addresses now: begin to connect to new ones, leave old ones.

        A cell that has vanished while it is connected may be draining: it is left when it ends its
        session.
        """
        for address in sorted(set(addresses) - self._cells.keys()):
            log.info("cell_found", address=address)
            self._add(address)
        self._vanished = self._cells.keys() - set(addresses) - set(self._config.scheduler_addresses)
        for address in list(self._vanished):
            if not self._cells[address].connected:
                self._remove(address)

    async def stop(self) -> None:
        """End the sessions."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._waiting.values():
            timer.cancel()

    @property
    def why_not_serving(self) -> str:
        """Why no scheduler is connected; empty if one is."""
        return why_none_is_connected(self._cells.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait here, with no cell to run in."""
        return len(self._waiting)

    @property
    def choices(self) -> Collection[CellChoice[CellSession]]:
        """Of each model that has been served, the cells that take requests."""
        return self._choices.values()

    def statuses(self) -> list[CellStatus]:
        """Return the status of every cell, in the order of the configuration."""
        return [cell.status for cell in self._cells.values()]

    def models(self) -> list[ModelInfo]:
        """Return the models of the connected cells, once for each name and numerics id."""
        models = served_models(self._cells.values())
        return [replace(each, text_id=self._text_id) for each in models]

    async def watch(self) -> AsyncGenerator[list[CellStatus], None]:
        """Yield the status of every cell, at once and after changes; a slow reader misses some."""
        while True:
            changed = self._changed
            yield self.statuses()
            await changed.wait()

    async def find_model(self, name: str, numerics_id: str | None, with_vectors: bool) -> ModelInfo:
        """Return the model of a name, "" for the only one, waiting a while for a cell to connect.

        Args:
            name: that requests use.
            numerics_id: that it must have; None for any.
            with_vectors: see `served_models`.

        Raises:
            ModelNotFoundError: it is not served here.
            NumericsDifferError: it is, and not with this numerics id.
            UnavailableError: no scheduler that may serve it is reachable.
        """
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                while True:
                    changed = self._changed
                    found = find_served(self._cells.values(), name, numerics_id, with_vectors)
                    if found is not None:
                        return replace(found, text_id=self._text_id)
                    await changed.wait()
        except TimeoutError:
            raise unavailable(self._config.connect_timeout_s) from None

    def open(self, stream: RequestStream) -> None:
        """Start a request.

        Raises:
            RequestExistsError: its id is in use, by another one or one that it does not resume.
        """
        older = self.requests.get(stream.request_id)
        if older is not None:
            if not stream.continues(older):
                raise RequestExistsError(f"request_id: {stream.request_id} is in use")
            self._withdraw(older)
            older.fail(SupersededError(f"request_id: {stream.request_id} was resumed"))
        stream.owner = self
        self.requests[stream.request_id] = stream
        if not stream.ended:
            self._place(stream)

    def close(self, stream: RequestStream) -> None:
        """Forget a request; one that has not ended has lost its client: its blocks are freed."""
        if self.requests.get(stream.request_id) is stream:  # and no stream that resumed it
            del self.requests[stream.request_id]
        self._withdraw(stream)
        stream.drop()

    def abort(self, request_id: str, caller: str) -> bool:
        """End a caller's request; its stream finishes with ABORT. Returns whether there was one."""
        stream = self.requests.get(request_id)
        if stream is None or stream.ended or stream.caller.name != caller:
            return False
        self._withdraw(stream)
        stream.finish(FinishReason.ABORT)
        return True

    def pause(self, stream: RequestStream) -> None:
        """Take a request from its cell until its client has read what there is.

        Its blocks are free. They stay in the prefix cache until their place is needed.
        """
        self._cell_of[stream].cancel(stream)
        self.paused.add(stream)
        stream.ledger.paused()

    def read_on(self, stream: RequestStream) -> None:
        """Let a paused request go on, unless it has ended."""
        if stream in self.paused:
            self._place(stream)

    def _withdraw(self, stream: RequestStream) -> None:
        """Take a request from wherever it runs or waits."""
        self._stop_waiting(stream)
        self.paused.discard(stream)
        self._refused_by.pop(stream, None)
        cell = self._cell_of.pop(stream, None)
        if cell is not None:
            cell.cancel(stream)

    def _place(self, stream: RequestStream) -> None:
        """Submit a request to a cell that may compute it and takes requests; if none, it waits."""
        if assignment := self._assign(stream):
            self._submit(stream, assignment)
            return
        if stream in self._waiting:
            return
        stream.ledger.waits_for_cell()
        config = self._config
        limit_s = config.recovery_timeout_s if stream.has_begun else config.connect_timeout_s
        self._wait(stream, limit_s, self._give_up, stream, limit_s)

    def _assign(self, stream: RequestStream) -> Assignment[CellSession] | None:
        """Choose a cell that may compute a request and takes requests; None if there is none."""
        request = stream.request
        choice = self._choices.get(request.model.name)
        if choice is None:
            return None
        return choice.place(
            stream.tokens_to_compute,
            request.cache_salt.encode(),
            0 if request.pooling_params is not None else request.sampling_params.width,
            self._excluded(stream),
        )

    def _submit(self, stream: RequestStream, assignment: Assignment[CellSession]) -> None:
        self._stop_waiting(stream)
        reason = self._reason(stream)
        self.submissions[reason] += 1
        if reason is SubmissionReason.RESUMED:
            self.num_resumed_by_prefix += bool(assignment.num_cached_tokens)
        self.paused.discard(stream)
        self._cell_of[stream] = assignment.cell
        assignment.cell.submit(stream, assignment)

    def _excluded(self, stream: RequestStream) -> Collection[CellSession]:
        """Return the cells that lack room, would change tokens, or ignore what is asked for."""
        full = self._refused_by.get(stream, ())
        return {*full, *unfit(self._cells.values(), stream, self._text_id)}

    def _reason(self, stream: RequestStream) -> SubmissionReason:
        if stream in self._refused_by:
            return SubmissionReason.QUEUE_FULL
        if stream in self.paused:
            return SubmissionReason.READ_ON
        if stream in self._cell_of:
            return SubmissionReason.MOVED
        return SubmissionReason.RESUMED if stream.is_resumed else SubmissionReason.NEW

    def _give_up(self, stream: RequestStream, waited_s: float) -> None:
        del self._waiting[stream]
        if stream.has_begun and self._choices.get(stream.request.model.name):
            # Cells take requests for its model: all of them are others.
            stream.fail(numerics_lost(stream, waited_s))
        else:
            stream.fail(unavailable(waited_s))

    def _place_again(self, stream: RequestStream) -> None:
        del self._waiting[stream]
        self._place(stream)

    def _wait(
        self, stream: RequestStream, delay_s: float, then: Callable[..., None], *args: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[stream] = loop.call_later(delay_s, then, *args)

    def _stop_waiting(self, stream: RequestStream) -> None:
        if timer := self._waiting.pop(stream, None):
            timer.cancel()

    # What the cells report.

    def cell_changed(self) -> None:
        """Wake the watchers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def cell_connected(self, cell: CellSession) -> CellChoice[CellSession]:
        """Return the cells of its model that take requests, for it to join."""
        assert cell.model is not None, "connected"
        name = cell.model.name
        if cell.model.text_id not in ("", self._text_id):
            log.warning(
                "text_differs",
                address=cell.address,
                text_id=cell.model.text_id,
                router_text_id=self._text_id,
            )
        if name not in self._choices:
            policy = RoutingPolicy(self._config.routing_policy)
            self._choices[name] = CellChoice(policy, random.Random())
        return self._choices[name]

    def cell_ready(self) -> None:
        """Place the requests that wait for a cell, here or at one that hands over."""
        for stream in list(self._waiting):
            self._place(stream)
        self.cell_hands_over()

    def cell_hands_over(self) -> None:
        """Move requests from cells that drain or lack workers to those that may continue them.

        Those that no other cell may continue stay, until one does, the workers are back, or they
        have ended.
        """
        for cell in self._cells.values():
            for stream in list(cell.streams) if cell.state.hands_over else ():
                self._refused_by.pop(stream, None)  # they may have room by now
                if assignment := self._assign(stream):
                    cell.cancel(stream)
                    stream.ledger.lost()
                    self._submit(stream, assignment)

    def cell_disconnected(self, cell: CellSession) -> None:
        """Wake the watchers; forget the cell if its address is known no more."""
        for refused_by in self._refused_by.values():
            refused_by.discard(cell)  # it may come back with more room
        if cell.address in self._vanished:
            self._remove(cell.address)
        self.cell_changed()

    def streams_lost(self, streams: Iterable[RequestStream]) -> None:
        """Find a new place for requests that their cell does not run any more."""
        for stream in streams:
            self._refused_by.pop(stream, None)  # they may have room by now
            stream.ledger.lost()
            self._place(stream)

    def stream_refused(
        self, stream: RequestStream, cell: CellSession, error: OverloadedError
    ) -> None:
        """Try a few other cells: where all are full, trying each would be one load more for all."""
        refused_by = self._refused_by.setdefault(stream, set())
        refused_by.add(cell)
        choice = self._choices[stream.request.model.name]
        if len(refused_by) < min(MAX_REFUSALS, len(choice)):
            self._place(stream)
        else:
            stream.fail(error)

    def stream_too_large(
        self, stream: RequestStream, cell: CellSession, error: TooLargeError
    ) -> None:
        """Try a larger cell; what has begun waits for one if there is none."""
        connected = (each for each in self._cells.values() if each.connected)
        refused_by = self._refused_by.setdefault(stream, set())
        refused_by.update(each for each in connected if each.is_no_larger(cell))
        if stream.has_begun:
            self._place(stream)
        elif assignment := self._assign(stream):
            self._submit(stream, assignment)
        else:
            stream.fail(stream.request.explain(error))

    def stream_postponed(self, stream: RequestStream, retry_after_ms: int) -> None:
        """Try again later, as often as it takes: what has begun is not refused."""
        stream.ledger.lost()
        self._wait(stream, retry_after_ms / 1e3, self._place_again, stream)
