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
from enum import StrEnum

from quire.contract.errors import (
    ModelNotFoundError,
    NumericsLostError,
    OverloadedError,
    RequestExistsError,
    UnavailableError,
)
from quire.contract.outputs import CellStatus, FinishReason, ModelInfo
from quire.observe.log import get_logger
from router.cells.choice import CellChoice, RoutingPolicy
from router.cells.discovery import follow_names
from router.cells.session import CellSession
from router.config import RouterConfig
from router.requests.stream import RequestStream

# Full queues that a new request is tried at before its client gets an error.
MAX_REFUSALS = 3

log = get_logger()


class SubmissionReason(StrEnum):
    """Why a request is handed to a cell."""

    NEW = "new"
    # The cell that was tried before had no room for it.
    QUEUE_FULL = "queue_full"
    # The cell that had it was lost or drained, or had no room to go on with it.
    MOVED = "moved"


class CellPool:
    """The cells and the open requests of a router.

    Attributes:
        submissions: requests handed to cells so far, by why.
    """

    def __init__(self, config: RouterConfig, text_id: str = ""):
        """Prepare to connect.

        Args:
            config: names the cells.
            text_id: of this router's tokenizer.
        """
        self.submissions: Counter[SubmissionReason] = Counter()
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
        self._open: dict[str, RequestStream] = {}
        # Cells whose queue was full when a new request came.
        self._refused_by: dict[RequestStream, list[CellSession]] = {}
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
        cell = self._cells[address] = CellSession(address, self, self._config.tls)
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
    def is_serving(self) -> bool:
        """Whether any scheduler is connected."""
        return any(cell.connected for cell in self._cells.values())

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
        models = {
            (cell.model.name, cell.model.numerics_id): cell.model
            for cell in self._cells.values()
            if cell.connected and cell.model
        }
        return [replace(model, text_id=self._text_id) for model in models.values()]

    async def watch(self) -> AsyncGenerator[list[CellStatus], None]:
        """Yield the status of every cell, at once and after changes; a slow reader misses some."""
        while True:
            changed = self._changed
            yield self.statuses()
            await changed.wait()

    async def find_model(self, name: str) -> ModelInfo:
        """Return the model of a name, "" for the only one, waiting a while for a cell to connect.

        Raises:
            ModelNotFoundError: it is not served here.
            UnavailableError: no scheduler that may serve it is reachable.
        """
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                while True:
                    changed = self._changed
                    found = self._lookup(name)
                    if found is not None:
                        return found
                    await changed.wait()
        except TimeoutError:
            raise _unavailable(self._config.connect_timeout_s) from None

    def _lookup(self, name: str) -> ModelInfo | None:
        """Return the model of a name, None while a cell that may serve it is not connected."""
        models = self.models()
        if not models:
            return None
        names = dict.fromkeys(model.name for model in models)
        if not name and len(names) == 1:
            return models[0]
        for model in models:
            if model.name == name:
                return model
        cells = self._cells.values()
        if any(cell.model is None or cell.model.name == name for cell in cells):
            return None
        served = ", ".join(names)
        wrong = f"{name} is not served" if name else "required, several are served"
        raise ModelNotFoundError(f"model: {wrong}; served: {served}")

    def open(self, stream: RequestStream) -> None:
        """Start a request.

        Raises:
            RequestExistsError: its id is in use.
        """
        if stream.request_id in self._open:
            raise RequestExistsError(f"request_id: {stream.request_id} is in use")
        self._open[stream.request_id] = stream
        self._place(stream)

    def close(self, stream: RequestStream) -> None:
        """Forget a request; one that has not ended has lost its client: its blocks are freed."""
        del self._open[stream.request_id]
        self._withdraw(stream)
        stream.drop()

    @property
    def num_open(self) -> int:
        """Requests whose streams have not ended."""
        return len(self._open)

    def abort(self, request_id: str) -> bool:
        """End a request; its stream finishes with ABORT. Returns whether there was one to end."""
        stream = self._open.get(request_id)
        if stream is None or stream.ended:
            return False
        self._withdraw(stream)
        stream.finish(FinishReason.ABORT)
        return True

    def _withdraw(self, stream: RequestStream) -> None:
        """Take a request from wherever it runs or waits."""
        self._stop_waiting(stream)
        self._refused_by.pop(stream, None)
        cell = self._cell_of.pop(stream, None)
        if cell is not None:
            cell.cancel(stream)

    def _place(self, stream: RequestStream) -> None:
        """Submit a request to a cell that may compute it and takes requests; if none, it waits."""
        request = stream.request
        choice = self._choices.get(request.model.name)
        assignment = choice and choice.place(
            stream.tokens_to_compute,
            request.cache_salt.encode(),
            request.sampling_params.width,
            self._others(stream) if stream.was_queued else self._refused_by.get(stream, ()),
        )
        if assignment:
            self._stop_waiting(stream)
            self.submissions[self._reason(stream)] += 1
            self._cell_of[stream] = assignment.cell
            assignment.cell.submit(stream, assignment)
            return
        if stream in self._waiting:
            return
        stream.ledger.waits_for_cell()
        config = self._config
        limit_s = config.recovery_timeout_s if stream.was_queued else config.connect_timeout_s
        self._wait(stream, limit_s, self._give_up, stream, limit_s)

    def _others(self, stream: RequestStream) -> set[CellSession]:
        """Return the cells that might continue a stream with other tokens, or end it sooner."""
        return {
            cell
            for cell in self._cells.values()
            if cell.model is not None
            and (
                cell.model.numerics_id != stream.numerics_id
                or cell.model.max_model_len < stream.max_model_len
            )
        }

    def _reason(self, stream: RequestStream) -> SubmissionReason:
        if stream in self._refused_by:
            return SubmissionReason.QUEUE_FULL
        return SubmissionReason.MOVED if stream in self._cell_of else SubmissionReason.NEW

    def _give_up(self, stream: RequestStream, waited_s: float) -> None:
        del self._waiting[stream]
        if stream.was_queued and self._choices.get(stream.request.model.name):
            # Cells take requests for its model: all of them are others.
            stream.fail(_numerics_lost(stream, waited_s))
        else:
            stream.fail(_unavailable(waited_s))

    def _place_again(self, stream: RequestStream) -> None:
        del self._waiting[stream]
        self._place(stream)

    def _wait(
        self, stream: RequestStream, delay_s: float, then: Callable[..., None], *args: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[stream] = loop.call_later(delay_s, then, *args)

    def _stop_waiting(self, stream: RequestStream) -> None:
        timer = self._waiting.pop(stream, None)
        if timer is not None:
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
        """Place the requests that wait for a cell."""
        for stream in list(self._waiting):
            self._place(stream)

    def cell_disconnected(self, cell: CellSession) -> None:
        """Wake the watchers; forget the cell if its address is known no more."""
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
        refused_by = self._refused_by.setdefault(stream, [])
        refused_by.append(cell)
        choice = self._choices[stream.request.model.name]
        if len(refused_by) < min(MAX_REFUSALS, len(choice)):
            self._place(stream)
        else:
            stream.fail(error)

    def stream_postponed(self, stream: RequestStream, retry_after_ms: int) -> None:
        """Try again later, as often as it takes: what was queued once is not refused."""
        stream.ledger.lost()
        self._wait(stream, retry_after_ms / 1e3, self._place_again, stream)


def _unavailable(waited_s: float) -> UnavailableError:
    return UnavailableError(f"no scheduler is reachable (waited {waited_s:g} s)")


def _numerics_lost(stream: RequestStream, waited_s: float) -> NumericsLostError:
    return NumericsLostError(
        f"numerics_id: must be {stream.numerics_id or 'absent'} to continue this stream with the "
        f"same tokens, but no such cell with a max_model_len of {stream.max_model_len} or more is "
        f"left that serves {stream.request.model.name} (waited {waited_s:g} s); the request may be "
        "sent again"
    )
