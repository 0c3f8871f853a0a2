"""Epochs, and the one stream of steps that a worker obeys.

All of this runs on the event loop, except that the model's thread calls `ExecuteStream.advance`
right before a step: a step that was queued before a newer scheduler took over is refused as well.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.contract.epochs import max_epoch
from quire.contract.errors import InvalidRequestError, StaleEpochError
from quire.contract.steps import StepGap

# Starts of schedulers: what was replaced before these has ended long since.
MAX_REPLACED = 256


class ExecuteStream:
    """An Execute stream.

    Args:
        on_end: called on the event loop when another stream takes over.

    Attributes:
        epoch: that all its messages must carry, as the first does; 0 before that.
        is_ended: whether no further step of the stream may run.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.epoch = 0
        self.is_ended = False
        self._on_end = on_end
        self._next_step_id = 1

    def supersede(self) -> None:
        """End the stream because a newer one has begun, or a newer scheduler has sent a message.

        Mutates: is_ended.
        """
        self.is_ended = True
        self._on_end()

    def is_first(self, step_id: int) -> bool:
        """Return whether this step opens the stream."""
        return step_id == 1 and self._next_step_id == 1

    def advance(self, step_id: int) -> StepGap | None:
        """Accept the next step, or return the gap before it.

        Mutates: the step id to come.

        Raises:
            StaleEpochError: the stream has ended.
        """
        if self.is_ended:
            raise StaleEpochError(f"the stream of epoch {self.epoch} has ended")
        if step_id != self._next_step_id:
            return StepGap(expected_step_id=self._next_step_id, received_step_id=step_id)
        self._next_step_id += 1
        return None


class EpochGuard:
    """Accepts the highest epoch seen, and within it the newest stream.

    A scheduler's name stays when it starts again; the word that it draws at each start does not. A
    start that another one has replaced gets nothing back, with however high an epoch it asks.

    Attributes:
        highest: highest epoch seen; 0 before the first message.
        scheduler_name: name of the scheduler that has loaded the model; empty if it has none.
        is_driver_silent: whether its heartbeats have stopped: another one may have the worker.
    """

    def __init__(self) -> None:
        self.highest = 0
        self.is_driver_silent = False
        self.scheduler_name = ""
        # Of the scheduler that has the highest epoch; empty for one of an earlier release.
        self._start = ""
        self._replaced: deque[str] = deque(maxlen=MAX_REPLACED)
        # In order of their calls.
        self._streams: dict[ExecuteStream, None] = {}

    @property
    def driver_name(self) -> str:
        """Name of the scheduler that has an Execute call open; empty while none has."""
        return self.scheduler_name if self._streams and not self.is_driver_silent else ""

    def check(self, epoch: int, start: str) -> None:
        """Check that no newer scheduler has the worker.

        Args:
            epoch: of a message.
            start: of the scheduler that sent it; empty if it is not known.

        Raises:
            StaleEpochError: one has.
        """
        if start in self._replaced:
            raise StaleEpochError(
                f"another start of this scheduler, or another scheduler, has replaced it; this "
                f"worker obeys epoch {self.highest}"
            )
        if epoch < self.highest:
            raise StaleEpochError(f"epoch {epoch} is over; this worker obeys epoch {self.highest}")
        if epoch == self.highest and start and self._start not in ("", start):
            raise StaleEpochError(f"epoch {epoch} is that of another start of a scheduler")

    def admit(self, epoch: int, start: str = "") -> None:
        """Accept a message of an epoch; a higher epoch than any before ends all streams.

        Mutates: highest.

        Raises:
            StaleEpochError: a higher epoch was seen, or the scheduler's start was replaced.
            InvalidRequestError: no scheduler has the epoch: it is 0, or far ahead of the clock.
        """
        if epoch == 0:
            raise InvalidRequestError("epoch", "must be at least 1, got 0")
        if epoch > (limit := max_epoch()):
            raise InvalidRequestError(
                "epoch",
                f"must be at most {limit}, 30 days ahead of the worker's clock, got {epoch}",
            )
        self.check(epoch, start)
        if epoch > self.highest:
            self.highest = epoch
            # Schedulers of an earlier release form again where such a stream ends.
            self._end_streams(with_unused=bool(self._start))
            if self._start not in ("", start):
                self._replaced.append(self._start)
            self._start = start

    @contextmanager
    def open_stream(self, on_end: Callable[[], None]) -> Iterator[ExecuteStream]:
        """Count an Execute call while it is open, even before its first step has come.

        Args:
            on_end: called on the event loop when another stream takes over.
        """
        stream = ExecuteStream(on_end)
        self._streams[stream] = None
        try:
            yield stream
        finally:
            stream.is_ended = True
            self._streams.pop(stream, None)

    def begin(self, stream: ExecuteStream, epoch: int) -> None:
        """Have a stream take over from all others, with its first step.

        Mutates: the stream's epoch.

        Raises:
            StaleEpochError: a higher epoch was seen.
            InvalidRequestError: no scheduler has the epoch.
        """
        # Not among those that it ends.
        self._streams.pop(stream, None)
        self.admit(epoch)
        self._end_streams(with_unused=False)
        stream.epoch = epoch
        self._streams[stream] = None

    def _end_streams(self, with_unused: bool) -> None:
        for stream in list(self._streams):
            if with_unused or stream.epoch:
                del self._streams[stream]
                stream.supersede()
