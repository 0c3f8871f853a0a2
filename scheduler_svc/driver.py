"""The step loop: forms the workers, runs the steps of the cell, and drains it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from quire.contract.errors import UnavailableError
from quire.contract.outputs import ModelInfo
from quire.contract.resizing import ResizeProgress
from quire.contract.sessions import BlockSource, SessionEvent, Submission
from quire.contract.workers import LONGEST_STEP_S
from quire.observe.log import get_logger
from scheduler_svc.arrivals import Arrivals
from scheduler_svc.cell import Cell
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.resizing import Resizing
from scheduler_svc.sessions.session import RouterSession
from scheduler_svc.workers.client import WorkerFailedError
from scheduler_svc.workers.worker_set import WorkerSet

REPORT_INTERVAL_S = 0.1
IDLE_REPORT_INTERVAL_S = 1.0
DRAIN_POLL_S = 0.02
RESERVED_POLL_S = 0.005
# A step that hangs is to be found by its worker's heartbeats before.
STUCK_AFTER_S = 1.2 * LONGEST_STEP_S
# Outputs of a step for 256 sequences are about 2 KB: some MB for a router that stopped reading.
MAX_UNSENT_EVENTS = 1024

log = get_logger()


class Driver:
    """Runs a cell: its workers, its steps, its sessions with routers.

    Everything runs on one event loop. What sessions ask for goes to the cell at once, between its
    steps or while the workers run one.

    Args:
        config: of the cell.
        on_serving: called with whether the cell takes requests, whenever that changes.
        on_missing: called with the ranks that have not announced themselves, whenever they change.

    Attributes:
        workers: of the cell.
        arrivals: requests from other cells whose blocks are on their way.
        peer_timeout_s: how long routers and workers may be silent before they count as lost.
        cell: None until the workers are formed for the first time.
        drained: set when draining is over.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_serving: Callable[[bool], Awaitable[None]],
        on_missing: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._config = config
        self.peer_timeout_s = config.peer_timeout_s
        self._on_serving = on_serving
        self._wake = asyncio.Event()
        self._serving = asyncio.Event()
        self._sessions: set[RouterSession] = set()
        self._is_draining = False
        # When the step loop turned last, on the monotonic clock.
        self._turned_s = 0.0
        self.workers = WorkerSet(config, self._wake.set, on_missing)
        self.arrivals = Arrivals(config, self.workers, self._queue)
        self._resizing = Resizing(self.workers, self.arrivals, self._wake.set)
        self._scheduler_name = ""
        self.cell: Cell | None = None
        self.drained = asyncio.Event()

    # ---------------------------------------------------------------- sessions

    async def wait_serving(self) -> Cell:
        """Return the cell while its workers are ready to run steps."""
        await self._serving.wait()
        return self._formed_cell

    @property
    def _formed_cell(self) -> Cell:
        assert self.cell is not None, "the workers are formed"
        return self.cell

    @property
    def num_sessions(self) -> int:
        """Routers that are connected."""
        return len(self._sessions)

    def open_session(self) -> RouterSession:
        """Return a new session."""
        session = RouterSession(MAX_UNSENT_EVENTS)
        self._sessions.add(session)
        return session

    def close_session(self, session: RouterSession) -> None:
        """Abort the requests of a session and send it nothing more."""
        self._sessions.discard(session)
        self.arrivals.cancel_all(session)
        if self.cell is not None:
            self.cell.abort_all(session)

    def submit(self, session: RouterSession, submission: Submission) -> None:
        """Give a request to the cell, which sends the session what becomes of it."""
        cell, is_ending = self._formed_cell, self._resizing.is_due
        # Workers that are about to be replaced fetch nothing more.
        if is_ending or not self.arrivals.take(cell, session, submission):
            self._queue(session, submission)

    def _queue(self, session: RouterSession, submission: Submission) -> None:
        cell = self._formed_cell
        if not self._has_work(cell):
            self._turned_s = time.monotonic()
        cell.submit(session, submission)
        self._wake.set()

    # ---------------------------------------------------------------- life

    async def run(self, scheduler_name: str) -> None:
        """Form the workers and run steps; form them again whenever one is lost, until cancelled.

        Args:
            scheduler_name: by which workers know who drives them, the same after a new start.

        Raises:
            QuireError: the workers cannot be formed and another attempt cannot help, or another
                scheduler has taken them over.
        """
        self._scheduler_name = scheduler_name
        tasks = list(map(asyncio.create_task, (self._drive(scheduler_name), self._report())))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await self.arrivals.close()
            self.workers.cancel_streams()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive(self, scheduler_name: str) -> None:
        formed = await self.workers.form_first(scheduler_name)
        cell = self.cell = Cell(self._config, formed, self._is_draining)
        while True:
            await self._set_serving(True)
            while (loss := await self._step_until_lost(cell)) is None:
                model = cell.model
                await self._resizing.switch(cell, scheduler_name)
                self._took_workers(cell, model)
            await self._set_serving(False)
            self._resizing.fail(UnavailableError("the workers in use were lost; they form again"))
            cell.lose_workers(has_failed=isinstance(loss, WorkerFailedError))
            # At once: routers have other cells for what waits here.
            self._send_state(cell)
            self.arrivals.lose_workers(cell)
            model = cell.model
            cell.take_workers(await self.workers.form_again(scheduler_name))
            self._took_workers(cell, model)

    def _took_workers(self, cell: Cell, before: ModelInfo) -> None:
        """Send routers what the cell is with other workers.

        Only a welcome describes the model: where the description is another now, since the
        tokenizer is, or since it gives vectors or none any more, routers have to connect again, and
        place what they have here anew.
        """
        self._send_state(cell)
        if cell.model != before:
            for session in list(self._sessions):
                session.end(
                    UnavailableError(
                        "the workers serve a model of another description: connect again"
                    )
                )
                self.close_session(session)

    async def close(self) -> None:
        """End every session and close the channels; `run` must have ended."""
        for session in list(self._sessions):
            session.end(UnavailableError("the scheduler stops"))
        await self.workers.close()

    async def _set_serving(self, serving: bool) -> None:
        if serving:
            self._serving.set()
        else:
            self._serving.clear()
        await self._on_serving(serving and not self._is_draining)

    @property
    def why_stuck(self) -> str:
        """Why only a new start can help; empty if none is needed.

        A cell that waits for lost workers is not stuck: its requests go on once they are back.
        """
        cell = self.cell
        if cell is None or not (self._serving.is_set() and self._has_work(cell)):
            return ""
        stuck_s = time.monotonic() - self._turned_s
        return f"no step for {stuck_s:.0f} s" if stuck_s > STUCK_AFTER_S else ""

    def _has_work(self, cell: Cell) -> bool:
        """Return whether there are requests, or steps in flight, which aborted ones leave."""
        return cell.scheduler.has_unfinished or self.workers.num_in_flight > 0

    # ---------------------------------------------------------------- steps

    async def _step_until_lost(self, cell: Cell) -> UnavailableError | None:
        """Run steps until a worker is lost, or until other workers are to take over.

        Returns:
            How a worker was lost. If None, no step is in flight, and all that came is sent.
        """
        resizing = self._resizing
        try:
            while not resizing.is_due or self.workers.num_in_flight:
                self._turned_s = time.monotonic()
                if not resizing.is_due:
                    await self._send_steps(cell)
                # Only now: the workers should not wait for what the routers are sent.
                cell.send_outputs()
                if self.workers.num_in_flight:
                    progress = cell.update(await self.workers.receive())
                    resizing.observe(cell, progress)
                elif not cell.scheduler.has_unfinished:
                    await self._wait_for_work(cell)
                elif cell.blocks.reserved:
                    # Perhaps what waits needs blocks that are taken for what is on its way.
                    await self.workers.raise_if_lost()
                    await asyncio.sleep(RESERVED_POLL_S)
            resizing.stopped()
            cell.send_outputs()
            return None
        except UnavailableError as error:
            cell.send_outputs()
            num_running = len(cell.scheduler.queues.running)
            log.warning("workers_lost", error=error.message, num_running=num_running)
            return error

    async def _send_steps(self, cell: Cell) -> None:
        """Schedule and send steps until there are as many in flight as there may be."""
        while self.workers.num_in_flight < self._config.max_steps_in_flight:
            outputs = cell.schedule()
            if outputs is None:
                return
            await self.workers.send(outputs)

    async def _wait_for_work(self, cell: Cell) -> None:
        """Return when there is something to schedule.

        Raises:
            UnavailableError: a worker ended its stream meanwhile.
        """
        cell.scheduler.check_invariants()
        while not (cell.scheduler.has_unfinished or self._resizing.is_due):
            await self.workers.raise_if_lost()
            self._wake.clear()
            await self._wake.wait()
        self._turned_s = time.monotonic()

    def resize(
        self, addresses: tuple[str, ...], timeout_s: float
    ) -> AsyncGenerator[ResizeProgress, None]:
        """Have other workers take over from those in use; see Resizing.run.

        Raises:
            UnavailableError: the cell has no workers now, or drains.
        """
        if self._is_draining or not self._serving.is_set():
            what = "drains" if self._is_draining else "has no workers"
            raise UnavailableError(f"the cell {what}: it cannot be resized now")
        return self._resizing.run(self._formed_cell, self._scheduler_name, addresses, timeout_s)

    # ---------------------------------------------------------------- draining

    async def drain(self, move: bool, timeout_s: float = 0) -> int:
        """Refuse new requests, report that to the routers, and finish what time allows.

        Args:
            move: have the routers move what other cells may continue.
            timeout_s: for what is not moved; 0 for the configuration's drain_timeout_s.

        Returns:
            How many requests are unfinished in the end. Their routers continue them on other cells
            when their sessions end.
        """
        if not self._is_draining:
            self._is_draining = True
            log.info("drain_started", num_requests=self.num_unfinished)
            # What moves is fetched from the workers in use, and what stays ends on them.
            self._resizing.give_up(UnavailableError("the cell drains: it is not resized any more"))
            await self._on_serving(False)
        if self.cell is not None:
            self.cell.is_draining = True
            if move and not self.cell.is_moving:
                self.cell.is_moving = True
                self._send(BlockSource(self.workers.addresses))
            self._send_state(self.cell)
        deadline = time.monotonic() + (timeout_s or self._config.drain_timeout_s)
        while self._is_busy and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
        num_unfinished = self.num_unfinished
        log.info("drain_ended", num_unfinished=num_unfinished, num_moved=self.num_moved)
        self.drained.set()
        return num_unfinished

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended here."""
        return 0 if self.cell is None else self.cell.num_unfinished + len(self.arrivals)

    @property
    def num_moved(self) -> int:
        """Requests that routers have withdrawn since they are to move them."""
        return 0 if self.cell is None else self.cell.num_moved

    @property
    def _is_busy(self) -> bool:
        """Whether waiting helps: requests go on here, or their outputs are not sent yet.

        Requests that wait for workers to come back are better off on other cells.
        """
        if not self._serving.is_set():
            return False
        return self.num_unfinished > 0 or not all(each.is_sent for each in self._sessions)

    # ---------------------------------------------------------------- state

    async def _report(self) -> None:
        """Send the cell's state within 100 ms of a step, and once a second in any case."""
        cell = await self.wait_serving()
        reported, reported_s = cell.state, 0.0
        while True:
            state, now = cell.state, time.monotonic()
            if state != reported or now - reported_s >= IDLE_REPORT_INTERVAL_S:
                reported, reported_s = state, now
                self._send_state(cell)
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _send_state(self, cell: Cell) -> None:
        """Send every router the state of the cell, and what has changed in its prefix cache."""
        state, delta = cell.state, cell.blocks.digest.take_delta()
        if delta.added or delta.removed:
            self._send(delta)
        self._send(state)

    def _send(self, event: SessionEvent) -> None:
        for session in self._sessions:
            session.push(event)
