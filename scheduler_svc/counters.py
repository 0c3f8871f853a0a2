"""What a cell has done so far, and how it is: the state that it reports."""

from collections import Counter
from operator import attrgetter

from quire.contract.outputs import CellState, FinishReason
from quire.observe.metrics.histogram import COUNT_BOUNDS, LATENCY_BOUNDS_S, Histogram
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.outstanding import outstanding_tokens
from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.scheduler import Scheduler
from scheduler_svc.workers.worker_set import ExecutedStep

# Parts of a TimeAccount that a scheduler knows.
QUEUE_PHASES = ("queue_step", "queue_blocks", "queue_seqs", "queue_tokens")
REQUEST_PHASES = (*QUEUE_PHASES, "not_ready", "preempted", "prefill", "decode")
_TIMES_US = attrgetter(*(f"{phase}_us" for phase in REQUEST_PHASES))


class CellAccount:
    """Sums over the steps of a cell.

    Args:
        block_size: slots of a cache block.

    Attributes:
        epoch: of the workers' group.
        schedule_s: time spent in the pure scheduler.
        step_seconds: time of each step, as ExecutedStep.elapsed_us.
        step_tokens: tokens that each step computed.
        step_sequences: sequences of each step.
        num_queued: requests queued so far, those that go on from another cell among them.
        num_refused: requests refused so far, by the reason of the error.
        num_ended: sequences that ended so far, by why.
        phase_us: time of the requests that ended of themselves, by what they did or waited for.
        queue_seconds: that each of them was queued before its first step.
        prefill_seconds: that each was part of steps before it had a token.
        decode_seconds: from its first token to its last.
    """

    def __init__(self, block_size: int) -> None:
        self.epoch = 0
        self.schedule_s = 0.0
        self.step_seconds = Histogram(LATENCY_BOUNDS_S)
        self.step_tokens = Histogram(COUNT_BOUNDS)
        self.step_sequences = Histogram(COUNT_BOUNDS)
        self.num_queued = 0
        self.num_refused: Counter[str] = Counter()
        self.num_ended: Counter[FinishReason] = Counter()
        self.phase_us: Counter[str] = Counter()
        self.queue_seconds = Histogram(LATENCY_BOUNDS_S)
        self.prefill_seconds = Histogram(LATENCY_BOUNDS_S)
        self.decode_seconds = Histogram(LATENCY_BOUNDS_S)
        self._block_size = block_size
        self._steps = 0
        self._tokens = 0
        self._step_bytes = 0
        self._wire_us = 0
        self._model_us = 0
        self._sample_us = 0
        self._swap_us = 0

    def count(self, executed: ExecutedStep, num_tokens: int) -> None:
        """Add a step that sampled `num_tokens` tokens."""
        result = executed.result
        self._steps += 1
        self._tokens += num_tokens
        self._step_bytes += executed.step_bytes
        self._wire_us += max(0, executed.elapsed_us - result.worker_us)
        self._model_us += result.model_us
        self._sample_us += result.sample_us
        self._swap_us += result.swap_us
        self.step_seconds.observe(1e-6 * executed.elapsed_us)
        self.step_tokens.observe(executed.num_tokens)
        self.step_sequences.observe(executed.num_sequences)

    def count_ends(self, progress: Progress) -> None:
        """Add the sequences and requests that ended with a step."""
        for finished in progress.finished:
            self.num_ended[finished.finish_reason] += 1
        for group_id in progress.ended_group_ids:
            time = progress.times[group_id].account
            times_us = _TIMES_US(time)
            for phase, time_us in zip(REQUEST_PHASES, times_us, strict=True):
                self.phase_us[phase] += time_us
            self.queue_seconds.observe(1e-6 * sum(times_us[: len(QUEUE_PHASES)]))
            self.prefill_seconds.observe(1e-6 * time.prefill_us)
            self.decode_seconds.observe(1e-6 * time.decode_us)

    def state(
        self, scheduler: Scheduler, blocks: BlockSpaceManager, *, draining: bool
    ) -> CellState:
        """Return how the cell is now."""
        counters, prefix_cache = scheduler.counters, scheduler.prefix_cache
        return CellState(
            epoch=self.epoch,
            num_waiting=len(scheduler.queues.waiting),
            num_running=len(scheduler.queues.running),
            num_swapped=len(scheduler.residency.swapped_groups),
            outstanding_tokens=outstanding_tokens(scheduler.queues, prefix_cache),
            draining=draining,
            block_size=self._block_size,
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free_blocks,
            num_blocks_saved=blocks.num_blocks_saved,
            num_idle_slots=scheduler.residency.num_idle_slots,
            num_host_blocks=blocks.num_host_blocks,
            num_free_host_blocks=blocks.num_free_host_blocks,
            steps_total=self._steps,
            tokens_total=self._tokens,
            step_bytes_total=self._step_bytes,
            schedule_us_total=round(1e6 * self.schedule_s),
            wire_us_total=self._wire_us,
            model_us_total=self._model_us,
            sample_us_total=self._sample_us,
            swap_us_total=self._swap_us,
            preemptions_total=counters.preemptions,
            swapped_out_blocks_total=counters.swapped_out_blocks,
            swapped_in_blocks_total=counters.swapped_in_blocks,
            recomputed_tokens_total=counters.recomputed_tokens,
            prefix_cache_queries_total=prefix_cache.num_tokens_looked_up,
            prefix_cache_hits_total=prefix_cache.num_tokens_found,
        )
