"""When a request that comes now will have its first token, from what others have waited."""

from collections import deque
from dataclasses import dataclass, field

from quire.contract.errors import UnreachableDeadlineError
from quire.contract.sampling_params import SamplingParams
from scheduler_svc.policy.queues import Queues
from scheduler_svc.sequences.step_times import StepTimes

# What is known of how fast the queue moves is worth half after so many seconds of queueing.
HALF_LIFE_S = 10.0
# Predictions that are compared with what came of them, and for how long: a burst that is over
# must not refuse anything.
MAX_OUTCOMES = 256
OUTCOME_LIFE_S = 60.0
# With fewer, predictions stay as they are.
LEAST_OUTCOMES = 16
LONGEST_RETRY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a request will take, in seconds.

    Attributes:
        p50_s: half of all requests take longer.
        p99_s: one in a hundred takes longer.
    """

    p50_s: float
    p99_s: float

    def check(self, remaining_s: float) -> None:
        """Check that a request has a chance within the time that is left to it.

        Raises:
            UnreachableDeadlineError: one in a hundred of its kind would be late.
        """
        if self.p99_s > remaining_s:
            late_ms = round(1e3 * (self.p99_s - remaining_s))
            raise UnreachableDeadlineError(
                f"deadline: must be at least {self.p99_s:.3f} s from now (predicted p99; p50 "
                f"{self.p50_s:.3f} s), got {remaining_s:.3f} s",
                min(max(1, late_ms), LONGEST_RETRY_MS),
            )


@dataclass(slots=True)
class FirstTokenTimes:
    """Predicts times to the first token, and corrects itself by what they were.

    The queue's time is the groups before a request times the mean interval between starts, as
    measured while groups waited; the prompt's is that of steps of its size.

    Attributes:
        max_num_batched_tokens: tokens of one step.
        step_times: of the steps so far, by their tokens.
    """

    max_num_batched_tokens: int
    step_times: StepTimes = field(default_factory=StepTimes)
    _queued_s: float = 0.0
    _num_starts: float = 0.0
    _seen_s: float = 0.0
    _seen_starts: int = 0
    _was_waiting: bool = False
    # (when it came, measured time over predicted) of the last requests that had a first token.
    _outcomes: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MAX_OUTCOMES)
    )

    def observe_step(self, num_tokens: int, step_us: float, queues: Queues, now: float) -> None:
        """Record a step, and the groups that have started since the one before.

        Args:
            num_tokens: that it computed.
            step_us: that it took.
            queues: as the step has left them.
            now: in seconds.
        """
        self.step_times.observe_step(num_tokens, step_us)
        num_started, elapsed_s = queues.num_started - self._seen_starts, now - self._seen_s
        if self._was_waiting:
            kept = 0.5 ** (elapsed_s / HALF_LIFE_S)
            self._queued_s = self._queued_s * kept + elapsed_s
            self._num_starts = self._num_starts * kept + num_started
        self._seen_s, self._seen_starts = now, queues.num_started
        self._was_waiting = bool(queues.waiting)

    def observe_first_token(self, predicted_s: float, measured_s: float, now: float) -> None:
        """Record how long a request took whose time was predicted; steps may shift both by one."""
        step_s = self._steps_s(1, 1)
        self._outcomes.append((now, (measured_s + step_s) / (predicted_s + step_s)))

    def predict(self, num_prompt_tokens: int, num_ahead: int, num_running: int) -> float:
        """Return the time to the first token of a request, in seconds; 0 if nothing is known of it.

        Args:
            num_prompt_tokens: of its prompt.
            num_ahead: groups that wait and start before it.
            num_running: sequences that run.
        """
        if not self.step_times.is_measured:
            return 0.0
        queued_s = 0.0
        if num_ahead:
            if not self._num_starts:
                return 0.0
            queued_s = num_ahead * self._queued_s / self._num_starts
        # A prompt without tokens is refused later.
        num_steps = max(1, -(-num_prompt_tokens // self.max_num_batched_tokens))
        return queued_s + self._steps_s(num_steps, num_prompt_tokens / num_steps + num_running)

    def prediction(
        self, first_token_s: float, params: SamplingParams, num_running: int, now: float
    ) -> Prediction:
        """Return what to expect of a request.

        Args:
            first_token_s: of `predict`.
            params: its own; tokens that it is sure to generate count.
            num_running: sequences that run beside it.
            now: in seconds.
        """
        num_sure = (params.max_tokens or 1) if params.ignore_eos else max(1, params.min_tokens)
        decode_s = self._steps_s(num_sure - 1, 1 + num_running)
        ratios = sorted(ratio for came_s, ratio in self._outcomes if now - came_s < OUTCOME_LIFE_S)
        p50, p99 = _quantile(ratios, 0.5), _quantile(ratios, 0.99)
        return Prediction(p50 * first_token_s + decode_s, p99 * first_token_s + decode_s)

    def _steps_s(self, num_steps: int, num_tokens: float) -> float:
        if not num_steps or not self.step_times.is_measured:
            return 0.0
        return 1e-6 * num_steps * max(0.0, self.step_times.step_us(round(num_tokens)))


def _quantile(ratios: list[float], share: float) -> float:
    return 1.0 if len(ratios) < LEAST_OUTCOMES else ratios[int(share * len(ratios))]
