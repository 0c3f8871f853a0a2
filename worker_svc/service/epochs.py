"""Epochs and the one stream of steps a worker obeys.

Lives on the event loop. The worker thread reads only `StepStream.is_ended`, right before it runs a
step, so a step that was queued before a newer scheduler spoke is refused as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.contract.errors import InvalidRequestError, StaleEpochError
from quire.contract.steps import StepGap


class StepStream:
    """An Execute stream, from its first message on.

    Args:
        epoch: of that message.
        on_end: called, on the event loop, when another stream takes over.

    Attributes:
        epoch: that all messages of the stream must carry.
        is_ended: no further step of this stream may run.
    """

    def __init__(self, epoch: int, on_end: Callable[[], None]) -> None:
        self.epoch = epoch
        self.is_ended = False
        self._on_end = on_end
        self._next_step_id = 1

    def supersede(self) -> None:
        """End the stream because a newer one, or a newer scheduler, has spoken."""
        self.is_ended = True
        self._on_end()

    def is_first(self, step_id: int) -> bool:
        """Return whether this step opens the stream."""
        return step_id == 1 and self._next_step_id == 1

    def advance(self, step_id: int) -> StepGap | None:
        """Accept the next step, or return the gap before it.

        Raises:
            StaleEpochError: the stream has ended.
        """
        if self.is_ended:
            raise StaleEpochError(f"this stream of epoch {self.epoch} has ended")
        if step_id != self._next_step_id:
            return StepGap(expected_step_id=self._next_step_id, received_step_id=step_id)
        self._next_step_id += 1
        return None


class EpochGuard:
    """Obeys the highest epoch seen, and within it the newest stream.

    Attributes:
        highest: 0 until a scheduler has spoken.
        scheduler_name: of the one that has loaded the model; empty if it has none.
    """

    def __init__(self) -> None:
        self.highest = 0
        self.scheduler_name = ""
        self._num_calls = 0
        self._streams: set[StepStream] = set()

    @property
    def driver_name(self) -> str:
        """Name of the scheduler that has an Execute call open; empty while none has."""
        return self.scheduler_name if self._num_calls else ""

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count an Execute call while it is open, be it that no step has come yet."""
        self._num_calls += 1
        try:
            yield
        finally:
            self._num_calls -= 1

    def admit(self, epoch: int) -> None:
        """Accept a message of an epoch; one above all before ends the streams of those.

        Raises:
            StaleEpochError: a higher one was seen.
            InvalidRequestError: 0, which no scheduler has.
        """
        if epoch == 0:
            raise InvalidRequestError("epoch", "must be at least 1, got 0")
        if epoch < self.highest:
            raise StaleEpochError(f"epoch {epoch} is over; this worker obeys epoch {self.highest}")
        if epoch > self.highest:
            self.highest = epoch
            self._end_streams()

    def open_stream(self, epoch: int, on_end: Callable[[], None]) -> StepStream:
        """Return the stream that is obeyed from now on; ends any other.

        Raises:
            StaleEpochError: a higher epoch was seen.
            InvalidRequestError: epoch 0.
        """
        self.admit(epoch)
        self._end_streams()
        stream = StepStream(epoch, on_end)
        self._streams.add(stream)
        return stream

    def close_stream(self, stream: StepStream) -> None:
        """Forget a stream whose call is over."""
        stream.is_ended = True
        self._streams.discard(stream)

    def _end_streams(self) -> None:
        for stream in self._streams:
            stream.supersede()
        self._streams.clear()
