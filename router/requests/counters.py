"""What a router has done for its clients so far.

Everything is counted right before the write that reports it: a client that has read its answer
finds it in the counters already.
"""

import time
from collections import Counter
from enum import StrEnum

from quire.contract.errors import QuireError
from quire.contract.model_statistics import ModelStatistics
from quire.contract.outputs import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Started,
)
from quire.observe.metrics.histogram import Histogram


class RequestOutcome(StrEnum):
    """How a Generate call ended, or a request of a call that is several."""

    # Every output came to its end.
    FINISHED = "finished"
    # Abort was called for it.
    ABORTED = "aborted"
    # An output failed, or the request did after it had started.
    FAILED = "failed"
    # An error was all that its client got.
    REFUSED = "refused"
    # Its client cancelled it or went away, or the router stopped.
    CANCELLED = "cancelled"


class Latencies:
    """How long clients of a model waited.

    Attributes:
        queue: until a scheduler had taken the request.
        first_token: until the first token.
        between_tokens: from one message with tokens to the next.
        whole: until the last output had ended, of requests that finished.
        computed_s: of `whole`, the time after `queue`.
    """

    def __init__(self) -> None:
        self.queue = Histogram()
        self.first_token = Histogram()
        self.between_tokens = Histogram()
        self.whole = Histogram()
        self.computed_s = 0.0


class Counters:
    """Sums over the requests of a router.

    Attributes:
        requests: by model ("" where it was refused before that was known) and outcome.
        outputs: by model and finish reason.
        errors: by status code and reason.
        prompt_tokens: of requests that have started, by model.
        output_tokens: that clients were sent, by model.
        latencies: by model.
        key_requests: calls that have ended, by the name of their API key; none without keys.
        key_prompt_tokens: likewise, of requests that have started.
        key_output_tokens: likewise, that clients were sent.
        num_open: calls that have not ended.
        last_end: when a request of a model last ended, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, RequestOutcome]] = Counter()
        self.outputs: Counter[tuple[str, FinishReason]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.output_tokens: Counter[str] = Counter()
        self.latencies: dict[str, Latencies] = {}
        self.key_requests: Counter[str] = Counter()
        self.key_prompt_tokens: Counter[str] = Counter()
        self.key_output_tokens: Counter[str] = Counter()
        self.num_open = 0
        self.last_end: dict[str, float] = {}

    def open(self, key: str = "") -> "RequestCounters":
        """A call has come.

        Args:
            key: name of its API key; "" for none.
        """
        self.num_open += 1
        return RequestCounters(self, key)

    def statistics(self, model: str) -> ModelStatistics:
        """Return what became of the requests of a model."""
        latencies = self.latencies.get(model) or Latencies()
        failed = (RequestOutcome.FAILED, RequestOutcome.REFUSED)
        return ModelStatistics(
            num_finished=self.requests[model, RequestOutcome.FINISHED],
            num_failed=sum(self.requests[model, outcome] for outcome in failed),
            whole_s=latencies.whole.total,
            num_queued=latencies.queue.count,
            queue_s=latencies.queue.total,
            computed_s=latencies.computed_s,
            last_s=self.last_end.get(model, 0.0),
        )


class RequestCounters:
    """Counts one call. Its owner reports what is about to be written, and when the call is over.

    Args:
        counters: to count in.
        key: name of the call's API key; "" for none.
    """

    def __init__(self, counters: Counters, key: str) -> None:
        self._counters = counters
        self._key = key
        self._model = ""
        self._num_outputs = 1
        self._is_resumed = False
        self._arrival = time.monotonic()
        self._latencies: Latencies
        self._taken = self._arrival  # by a scheduler
        self._last_tokens: float | None = None
        self._has_started = False
        self._is_aborted = False
        self._has_failed = False
        self._is_counted = False

    def accept(self, model: str, num_outputs: int, is_resumed: bool = False) -> None:
        """The request is valid.

        Args:
            model: that it runs on.
            num_outputs: that its client will get.
            is_resumed: its prompt was counted where it ran first.
        """
        self._model, self._num_outputs, self._is_resumed = model, num_outputs, is_resumed
        latencies = self._counters.latencies
        if model not in latencies:
            latencies[model] = Latencies()
        self._latencies = latencies[model]

    def count(self, event: Event) -> None:
        """An event of an accepted request is about to be written."""
        match event:
            case Delta():
                if event.token_ids:
                    self._count_tokens(len(event.token_ids))
            case Started():
                self._has_started = True
                num_tokens = 0 if self._is_resumed else event.num_prompt_tokens
                self._counters.prompt_tokens[self._model] += num_tokens
                if self._key:
                    self._counters.key_prompt_tokens[self._key] += num_tokens
                self._taken = time.monotonic()
                self._latencies.queue.observe(self._taken - self._arrival)
            case Finished():
                self._count_output(event.finish_reason)

    def _count_tokens(self, num_tokens: int) -> None:
        now = time.monotonic()
        if self._last_tokens is None:
            self._latencies.first_token.observe(now - self._arrival)
        else:
            self._latencies.between_tokens.observe(now - self._last_tokens)
        self._last_tokens = now
        self._counters.output_tokens[self._model] += num_tokens
        if self._key:
            self._counters.key_output_tokens[self._key] += num_tokens

    def _count_output(self, reason: FinishReason) -> None:
        self._counters.outputs[self._model, reason] += 1
        self._is_aborted |= reason is FinishReason.ABORT
        self._has_failed |= reason.error is not None
        self._num_outputs -= 1
        if self._num_outputs == 0:
            if self._has_failed:
                self._end(RequestOutcome.FAILED)
            elif self._is_aborted:
                self._end(RequestOutcome.ABORTED)
            else:
                now = time.monotonic()
                self._latencies.whole.observe(now - self._arrival)
                self._latencies.computed_s += now - self._taken
                self._end(RequestOutcome.FINISHED)

    def fail(self, error: Exception) -> None:
        """The call is about to end with an error."""
        code, reason = QuireError.code, QuireError.reason
        if isinstance(error, QuireError):
            code, reason = error.code, error.reason
        self._counters.errors[code, reason] += 1
        self._end(RequestOutcome.FAILED if self._has_started else RequestOutcome.REFUSED)

    def close(self) -> None:
        """The call is over, whatever became of it."""
        self._end(RequestOutcome.CANCELLED)

    def _end(self, outcome: RequestOutcome) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._counters.num_open -= 1
            self._counters.requests[self._model, outcome] += 1
            self._counters.last_end[self._model] = time.time()
            if self._key:
                self._counters.key_requests[self._key] += 1
