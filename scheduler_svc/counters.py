"""What a cell has done so far."""

from collections import Counter
from operator import attrgetter

from quire.contract.outputs import FinishReason
from quire.observe.metrics.histogram import COUNT_BOUNDS, LATENCY_BOUNDS_S, Histogram
from scheduler_svc.policy.progress import Progress
from scheduler_svc.workers.executed_step import ExecutedStep

# Parts of a TimeBreakdown that a scheduler knows.
QUEUE_PHASES = ("queue_step", "queue_blocks", "queue_seqs", "queue_tokens")
REQUEST_PHASES = (*QUEUE_PHASES, "not_ready", "preempted", "prefill", "decode")
_TIMES_US = attrgetter(*(f"{phase}_us" for phase in REQUEST_PHASES))


class Counters:
    """Sums over the requests and steps of a cell.

    Attributes:
        num_steps: steps run so far.
        num_tokens: tokens sampled so far.
        step_bytes: size of the orders sent to one worker so far.
        schedule_s: time spent in the pure scheduler.
        wire_us: time of steps in which no worker computed.
        model_us: time of forward passes.
        sample_us: time of sampling.
        swap_us: time of moving blocks, beside the model.
        step_seconds: time of each step, of ExecutedStep.elapsed_us.
        step_tokens: tokens that each step computed.
        step_sequences: sequences of each step.
        num_blocks_offered: contents of blocks that workers had from before when they were formed.
        num_blocks_adopted: those of them that can be found since.
        num_queued: requests queued so far, those that go on from another cell among them.
        num_refused: requests refused so far, by the reason of the error.
        num_expired: requests that were queued and ended at their deadline.
        num_ended: sequences that ended so far, by their finish reason.
        phase_us: time of the requests that ended without an abort, by what they did or waited for.
        queue_seconds: that each of them was queued before its first step.
        prefill_seconds: that each was part of steps before it had a token.
        decode_seconds: from its first token to its last.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.step_bytes = 0
        self.schedule_s = 0.0
        self.wire_us = 0
        self.model_us = 0
        self.sample_us = 0
        self.swap_us = 0
        self.step_seconds = Histogram(LATENCY_BOUNDS_S)
        self.step_tokens = Histogram(COUNT_BOUNDS)
        self.step_sequences = Histogram(COUNT_BOUNDS)
        self.num_blocks_offered = 0
        self.num_blocks_adopted = 0
        self.num_queued = 0
        self.num_refused: Counter[str] = Counter()
        self.num_expired = 0
        self.num_ended: Counter[FinishReason] = Counter()
        self.phase_us: Counter[str] = Counter()
        self.queue_seconds = Histogram(LATENCY_BOUNDS_S)
        self.prefill_seconds = Histogram(LATENCY_BOUNDS_S)
        self.decode_seconds = Histogram(LATENCY_BOUNDS_S)

    def count_step(self, executed: ExecutedStep, num_tokens: int) -> None:
        """Add a step that sampled `num_tokens` tokens."""
        result = executed.result
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.step_bytes += executed.step_bytes
        self.wire_us += max(0, executed.elapsed_us - result.worker_us)
        self.model_us += result.model_us
        self.sample_us += result.sample_us
        self.swap_us += result.swap_us
        self.step_seconds.observe(1e-6 * executed.elapsed_us)
        self.step_tokens.observe(executed.num_tokens)
        self.step_sequences.observe(executed.num_sequences)

    def count_ends(self, progress: Progress) -> None:
        """Add the sequences and requests that ended with a step."""
        for finished in progress.finished:
            self.num_ended[finished.finish_reason] += 1
        for group_id in progress.ended_group_ids:
            time = progress.times[group_id].breakdown
            times_us = _TIMES_US(time)
            for phase, time_us in zip(REQUEST_PHASES, times_us, strict=True):
                self.phase_us[phase] += time_us
            self.queue_seconds.observe(1e-6 * sum(times_us[: len(QUEUE_PHASES)]))
            self.prefill_seconds.observe(1e-6 * time.prefill_us)
            self.decode_seconds.observe(1e-6 * time.decode_us)
