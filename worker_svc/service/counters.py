"""Counters of the steps of a worker, and whether one of them hangs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from quire.contract.steps import StepResult
from quire.contract.workers import LONGEST_STEP_S
from quire.observe.metrics.histogram import COUNT_BOUNDS, LATENCY_BOUNDS_S, Histogram
from worker_svc.service.step_times import StepTimes

# A step that hangs is to be found by its scheduler before.
STUCK_AFTER_S = 1.2 * LONGEST_STEP_S


class Counters:
    """Sums over the steps of a worker.

    Attributes:
        model_us: microseconds of forward passes.
        sample_us: microseconds of sampling.
        swap_us: microseconds of moving blocks, beside the model.
        num_computed_tokens: tokens that steps computed.
        num_sampled_tokens: tokens that steps sampled; 0 on ranks above 0, which report none.
        num_failed_sequences: sequences whose logits were not finite.
        num_failed_grammars: sequences under a grammar that were left no token.
        step_seconds: seconds that the model's thread, or the GPU, spent on each step.
        step_tokens: tokens that each step computed.
        step_times: how long steps of the present model took.
    """

    def __init__(self) -> None:
        self.model_us = 0
        self.sample_us = 0
        self.swap_us = 0
        self.num_computed_tokens = 0
        self.num_sampled_tokens = 0
        self.num_failed_sequences = 0
        self.num_failed_grammars = 0
        self.step_seconds = Histogram(LATENCY_BOUNDS_S)
        self.step_tokens = Histogram(COUNT_BOUNDS)
        self.step_times = StepTimes()
        # By thread, when it began its step, in seconds, and number and tokens of that.
        self._began: dict[str, tuple[float, int, int]] = {}

    def count(
        self,
        result: StepResult,
        num_tokens: int,
        num_failed: tuple[int, int],
        elapsed_s: float,
    ) -> None:
        """Add a step.

        Mutates: every sum.

        Args:
            result: of the step.
            num_tokens: that it computed.
            num_failed: sequences that failed by their logits, and under a grammar.
            elapsed_s: the longest that a thread has worked on it, as `running` counts.
        """
        self.model_us += result.model_us
        self.sample_us += result.sample_us
        self.swap_us += result.swap_us
        self.num_computed_tokens += num_tokens
        self.num_sampled_tokens += len(result.token_ids)
        self.num_failed_sequences += num_failed[0]
        self.num_failed_grammars += num_failed[1]
        self.step_seconds.observe(1e-6 * result.worker_us)
        self.step_tokens.observe(num_tokens)
        self.step_times.observe(num_tokens, elapsed_s)

    @contextmanager
    def working(self, thread: str, step_id: int, num_tokens: int) -> Iterator[None]:
        """Note that a thread works on a step for the length of the block."""
        self._began[thread] = time.monotonic(), step_id, num_tokens
        try:
            yield
        finally:
            del self._began[thread]

    @property
    def running(self) -> tuple[int, float, float]:
        """Number of the oldest step under way, its seconds so far, and its limit; 0 for none."""
        began = tuple(self._began.values())
        if not began:
            return 0, 0.0, 0.0
        oldest_s, step_id, num_tokens = min(began)
        return step_id, time.monotonic() - oldest_s, self.step_times.limit_s(num_tokens)

    @property
    def why_stuck(self) -> str:
        """Why the process should be started again; empty if it should not."""
        stuck_s = self.running[1]
        return f"a step has run for {stuck_s:.0f} s" if stuck_s > STUCK_AFTER_S else ""
