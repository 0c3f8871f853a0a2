"""Epochs, and the one stream of steps that a worker obeys.

All of this runs on the event loop, except that the model's thread calls `ExecuteStream.advance`
right before a step: a step that was queued before a newer scheduler took over is refused as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.contract.epochs import max_epoch
from quire.contract.errors import InvalidRequestError, StaleEpochError
from quire.contract.steps import StepGap


class ExecuteStream:
    """An Execute stream, from its first message on.

    Args:
        epoch: epoch of that message.
        on_end: called on the event loop when another stream takes over.

    Attributes:
        epoch: epoch that all messages of the stream must carry.
        is_ended: whether no further step of the stream may run.
    """

    def __init__(self, epoch: int, on_end: Callable[[], None]) -> None:
        self.epoch = epoch
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

    Attributes:
        highest: highest epoch seen; 0 before the first message.
        scheduler_name: name of the scheduler that has loaded the model; empty if it has none.
        is_driver_silent: whether its heartbeats have stopped: another one may have the worker.
    """

    def __init__(self) -> None:
        self.highest = 0
        self.is_driver_silent = False
        self.scheduler_name = ""
        self._num_calls = 0
        self._streams: set[ExecuteStream] = set()

    @property
    def driver_name(self) -> str:
        """Name of the scheduler that has an Execute call open; empty while none has."""
        return self.scheduler_name if self._num_calls and not self.is_driver_silent else ""

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count an Execute call while it is open, even before its first step has come."""
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1

    def admit(self, epoch: int) -> None:
        """Accept a message of an epoch; a higher epoch than any before ends all streams.

        Mutates: highest.

        Raises:
            StaleEpochError: a higher epoch was seen.
            InvalidRequestError: no scheduler has the epoch: it is 0, or far ahead of the clock.
        """
        if epoch == 0:
            raise InvalidRequestError("epoch", "must be at least 1, got 0")
        if epoch > (limit := max_epoch()):
            raise InvalidRequestError(
                "epoch",
                f"must be at most {limit}, 30 days ahead of the worker's clock, got {epoch}",
            )
        if epoch < self.highest:
            raise StaleEpochError(f"epoch {epoch} is over; this worker obeys epoch {self.highest}")
        if epoch > self.highest:
            self.highest = epoch
            self._end_streams()

    def open_stream(self, epoch: int, on_end: Callable[[], None]) -> ExecuteStream:
        """End all streams and return a new one.

        Raises:
            StaleEpochError: a higher epoch was seen.
            InvalidRequestError: no scheduler has the epoch.
        """
        self.admit(epoch)
        self._end_streams()
        stream = ExecuteStream(epoch, on_end)
        self._streams.add(stream)
        return stream

    def close_stream(self, stream: ExecuteStream) -> None:
        """End and forget a stream whose call is over."""
        stream.is_ended = True
        self._streams.discard(stream)

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.supersede()
        self._streams.clear()
