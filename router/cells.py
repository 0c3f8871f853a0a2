"""All the cells behind this router: which one runs a request, and what happens when one is lost.

The router holds everything that a request needs to continue: prompt, parameters, seed and the
tokens so far. When a session breaks, its requests are submitted again, to any cell that serves
their model or to the same one once it is back, and continue with the very tokens they would have
had. Their clients notice a pause and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from quire.errors import ModelNotFoundError, RequestExistsError, UnavailableError
from quire.log import get_logger
from quire.outputs import CellStatus, FinishReason, ModelInfo
from router.config import RouterConfig
from router.session import Cell
from router.streams import RequestStream

log = get_logger()


class CellPool:
    """The cells and the open requests of a router."""

    def __init__(self, config: RouterConfig):
        self._config = config
        self._cells = [Cell(address, self) for address in config.schedulers]
        self._open: dict[str, RequestStream] = {}
        # Requests that run nowhere now, and the timer that will fail them or place them again.
        self._waiting: dict[RequestStream, asyncio.TimerHandle] = {}
        # Set, and replaced by a new one, at every change of a cell.
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect to every cell."""
        self._tasks = [asyncio.create_task(cell.run()) for cell in self._cells]

    async def stop(self) -> None:
        """End the sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in self._waiting.values():
            timer.cancel()

    @property
    def is_serving(self) -> bool:
        """Whether any scheduler is connected."""
        return any(cell.connected for cell in self._cells)

    def statuses(self) -> list[CellStatus]:
        """Return the status of every cell, in the order of the configuration."""
        return [cell.status for cell in self._cells]

    def models(self) -> list[ModelInfo]:
        """Return the models of the connected cells, each once."""
        models = {
            cell.model.name: cell.model for cell in self._cells if cell.connected and cell.model
        }
        return list(models.values())

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
        if not name and len(models) == 1:
            return models[0]
        for model in models:
            if model.name == name:
                return model
        if any(cell.model is None or cell.model.name == name for cell in self._cells):
            return None
        served = ", ".join(model.name for model in models)
        asked = f"{name} is not served here" if name else "name one of several"
        raise ModelNotFoundError(f"model: {asked}; served: {served}")

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
        for cell in self._cells:
            cell.cancel(stream)

    def _place(self, stream: RequestStream) -> None:
        """Submit a request to the least loaded cell that serves its model; if none, let it wait."""
        self._stop_waiting(stream)
        name = stream.request.model.name
        candidates = [
            cell
            for cell in self._cells
            if cell.connected and cell.model and cell.model.name == name
        ]
        if candidates:
            min(candidates, key=lambda cell: cell.load).submit(stream)
            return
        config = self._config
        limit_s = config.recovery_timeout_s if stream.admitted else config.connect_timeout_s
        self._wait(stream, limit_s, self._give_up, stream, limit_s)

    def _give_up(self, stream: RequestStream, waited_s: float) -> None:
        del self._waiting[stream]
        stream.fail(_unavailable(waited_s))

    def _wait(
        self, stream: RequestStream, delay_s: float, then: Callable[..., None], *args: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[stream] = loop.call_later(delay_s, then, *args)

    def _stop_waiting(self, stream: RequestStream) -> None:
        timer = self._waiting.pop(stream, None)
        if timer is not None:
            timer.cancel()

    # What the cells tell us.

    def cell_changed(self) -> None:
        """Wake the watchers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def cell_connected(self) -> None:
        """Place the requests that wait for a cell."""
        for stream in list(self._waiting):
            self._place(stream)

    def streams_lost(self, streams: Iterable[RequestStream]) -> None:
        """Find a new place for the requests of a session that broke."""
        for stream in streams:
            self._place(stream)

    def stream_postponed(self, stream: RequestStream, retry_after_ms: int) -> None:
        """Try again later, as often as it takes: what was admitted is not turned away."""
        self._wait(stream, retry_after_ms / 1e3, self._place, stream)


def _unavailable(waited_s: float) -> UnavailableError:
    return UnavailableError(f"no scheduler is reachable (waited {waited_s:g} s)")
