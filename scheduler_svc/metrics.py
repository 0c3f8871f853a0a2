"""Metrics of a scheduler, read from its counters and its state when Prometheus asks."""

import time
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire.contract.outputs import CellState, FinishReason
from quire.observe.metrics.families import counter, gauge, histogram
from scheduler_svc.cell import Cell
from scheduler_svc.counters import REQUEST_PHASES, Counters
from scheduler_svc.driver import Driver

# Reasons of refusals, so that their series are there before the first.
_REFUSALS = (
    "INVALID_REQUEST",
    "TOO_LARGE",
    "QUEUE_FULL",
    "DRAINING",
    "DEADLINE_EXCEEDED",
    "DEADLINE_UNREACHABLE",
    "QUARANTINED",
    "QUOTA_EXCEEDED",
)


class SchedulerCollector(Collector):
    """The metrics of a scheduler.

    Args:
        driver: of the cell.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def collect(self) -> Iterator[Metric]:
        """Yield the families; before the workers are formed, only those about them."""
        driver = self._driver
        yield gauge(
            "quire_scheduler_worker_up",
            "1 for a worker that answered its last call.",
            {(str(rank),): float(up) for rank, up in driver.workers.reachable.items()},
            ("rank",),
        )
        yield counter(
            "quire_scheduler_group_formations_total",
            "How often the workers have been formed.",
            driver.workers.num_formations,
        )
        yield gauge(
            "quire_scheduler_epoch",
            "Epoch of the workers; grows with each formation.",
            0 if driver.cell is None else driver.cell.epoch,
        )
        recorder = driver.workers.recorder
        yield counter(
            "quire_scheduler_recorded_bytes_total",
            "Bytes of the recording of steps.",
            0 if recorder is None else recorder.num_bytes,
        )
        yield counter(
            "quire_scheduler_recording_dropped_total",
            "Orders and results that are missing there: the disk was too slow, or full.",
            0 if recorder is None else recorder.num_dropped,
        )
        yield gauge("quire_scheduler_sessions", "Routers that are connected.", driver.num_sessions)
        if driver.cell is not None:
            state = driver.cell.state
            yield from _requests(driver.cell.counters, state)
            yield counter(
                "quire_scheduler_quota_refusals_total",
                "Requests refused for a quota, by the name of their API key.",
                dict(driver.cell.quotas.num_refused),
                ("key", "quota"),
            )
            predicted = driver.cell.deadlines.predict_first_token(time.monotonic())
            yield gauge(
                "quire_scheduler_predicted_first_token_seconds",
                "Predicted time to the first token of a short prompt that comes now.",
                {("0.5",): predicted.p50_s, ("0.99",): predicted.p99_s},
                ("share",),
            )
            yield from _cache(driver.cell, state)
            arrivals = driver.arrivals
            yield counter(
                "quire_scheduler_moved_blocks_total",
                "Full blocks of requests that came from other cells, by what became of them.",
                {
                    ("fetched",): arrivals.num_fetched,
                    ("missing",): arrivals.num_missing,
                    ("recomputed",): arrivals.num_recomputed,
                },
                ("outcome",),
            )
            yield from _steps(driver.cell.counters, state)
            yield gauge(
                "quire_scheduler_steps_in_flight",
                "Steps sent whose result has not come back.",
                driver.workers.num_in_flight,
            )


def _requests(counters: Counters, state: CellState) -> Iterator[Metric]:
    yield gauge(
        "quire_scheduler_requests",
        "Requests that wait for their first step or to go on, run, or wait in host memory.",
        {
            ("waiting",): state.num_waiting - state.num_swapped,
            ("running",): state.num_running,
            ("swapped",): state.num_swapped,
        },
        ("state",),
    )
    yield counter(
        "quire_scheduler_requests_admitted_total",
        "Requests queued, those that go on from another cell among them.",
        counters.num_queued,
    )
    yield counter(
        "quire_scheduler_requests_refused_total",
        "Requests refused.",
        {(reason,): counters.num_refused[reason] for reason in _REFUSALS},
        ("reason",),
    )
    yield counter(
        "quire_scheduler_requests_expired_total",
        "Requests that were queued and ended at their deadline.",
        counters.num_expired,
    )
    yield counter(
        "quire_scheduler_sequences_ended_total",
        "Sequences that ended of themselves; the rest were aborted.",
        {
            (reason.value,): counters.num_ended[reason]
            for reason in FinishReason
            if reason is not FinishReason.ABORT
        },
        ("reason",),
    )
    yield counter(
        "quire_scheduler_request_phase_seconds_total",
        "Time of requests that ended of themselves, by what they did or waited for.",
        {(phase,): 1e-6 * counters.phase_us[phase] for phase in REQUEST_PHASES},
        ("phase",),
    )
    yield histogram(
        "quire_scheduler_queue_seconds",
        "Time that each of them was queued before its first step.",
        counters.queue_seconds,
    )
    yield histogram(
        "quire_scheduler_prefill_seconds",
        "Time from the first step of each of them to its first token.",
        counters.prefill_seconds,
    )
    yield histogram(
        "quire_scheduler_decode_seconds",
        "Time from the first token of each of them to its last.",
        counters.decode_seconds,
    )
    yield gauge(
        "quire_scheduler_outstanding_tokens",
        "Tokens yet to be computed, and 64 for each sequence that decodes or will.",
        state.outstanding_tokens,
    )
    yield gauge(
        "quire_scheduler_draining",
        "1 while the cell finishes what it has and takes nothing new.",
        float(state.draining),
    )


def _cache(cell: Cell, state: CellState) -> Iterator[Metric]:
    preemptions, num_cached = cell.scheduler.counters, cell.blocks.num_cached_blocks
    yield gauge(
        "quire_scheduler_kv_blocks",
        "Blocks of the KV cache; cached ones are free, but keep a prefix until needed.",
        {
            ("device", "used"): state.num_blocks - state.num_free_blocks,
            ("device", "cached"): num_cached,
            ("device", "free"): state.num_free_blocks - num_cached,
            ("host", "used"): state.num_host_blocks - state.num_free_host_blocks,
            ("host", "free"): state.num_free_host_blocks,
        },
        ("memory", "state"),
    )
    yield gauge(
        "quire_scheduler_kv_block_tokens",
        "Tokens that fit into a block.",
        state.block_size,
    )
    yield gauge(
        "quire_scheduler_kv_idle_slots",
        "Slots of used blocks that hold no token yet: what the cache wastes.",
        state.num_idle_slots,
    )
    yield gauge(
        "quire_scheduler_kv_blocks_saved",
        "Blocks that would be needed besides if no sequences shared any.",
        state.num_blocks_saved,
    )
    yield counter(
        "quire_scheduler_kv_blocks_offered_total",
        "Full blocks that the workers still held when they were formed.",
        cell.counters.num_blocks_offered,
    )
    yield counter(
        "quire_scheduler_kv_blocks_adopted_total",
        "Those of them that were kept, to be found as prefixes.",
        cell.counters.num_blocks_adopted,
    )
    yield counter(
        "quire_scheduler_swapped_blocks_total",
        "Blocks moved between device and host.",
        {
            ("out",): state.swapped_out_blocks_total,
            ("in",): state.swapped_in_blocks_total,
        },
        ("direction",),
    )
    yield counter(
        "quire_scheduler_preemptions_total",
        "Requests that had to give up their blocks, by what became of those.",
        {
            ("swap",): preemptions.swaps,
            ("recompute",): preemptions.preemptions - preemptions.swaps,
        },
        ("mode",),
    )
    yield counter(
        "quire_scheduler_recomputed_tokens_total",
        "Tokens that preemptions have lost, to be computed again.",
        state.recomputed_tokens_total,
    )
    yield counter(
        "quire_scheduler_prefix_cache_queries_total",
        "Tokens of sequences that started, looked up in the prefix cache.",
        state.prefix_cache_queries_total,
    )
    yield counter(
        "quire_scheduler_prefix_cache_hits_total",
        "Those of them that were found there.",
        state.prefix_cache_hits_total,
    )


def _steps(counters: Counters, state: CellState) -> Iterator[Metric]:
    yield counter("quire_scheduler_steps_total", "Steps run.", state.steps_total)
    yield counter("quire_scheduler_sampled_tokens_total", "Tokens sampled.", state.tokens_total)
    yield counter(
        "quire_scheduler_draft_tokens_total",
        "Tokens drafted by speculation.",
        state.draft_tokens_total,
    )
    yield counter(
        "quire_scheduler_accepted_draft_tokens_total",
        "Those of them that were right.",
        state.accepted_draft_tokens_total,
    )
    yield counter(
        "quire_scheduler_phase_seconds_total",
        "Time of steps by phase: deciding, sending, the model, sampling, moving blocks.",
        {
            ("schedule",): 1e-6 * state.schedule_us_total,
            ("wire",): 1e-6 * state.wire_us_total,
            ("model",): 1e-6 * state.model_us_total,
            ("sample",): 1e-6 * state.sample_us_total,
            ("swap",): 1e-6 * state.swap_us_total,
        },
        ("phase",),
    )
    yield counter(
        "quire_scheduler_step_bytes_total",
        "Bytes of the orders sent to one worker.",
        state.step_bytes_total,
    )
    yield histogram(
        "quire_scheduler_step_seconds",
        "Time of a step, from its orders, or the end of the one before, to its result.",
        counters.step_seconds,
    )
    yield histogram(
        "quire_scheduler_step_tokens", "Tokens computed in a step.", counters.step_tokens
    )
    yield histogram(
        "quire_scheduler_step_sequences", "Sequences of a step.", counters.step_sequences
    )


class SchedulerAliases(Collector):
    """Metrics under the names that vLLM has for them.

    Args:
        driver: of the cell.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def collect(self) -> Iterator[Metric]:
        """Yield the families; none before the workers are formed."""
        cell = self._driver.cell
        if cell is None:
            return
        state, labels, model = cell.state, ("model_name",), (cell.model.name,)
        usage = 1 - state.num_free_blocks / state.num_blocks
        for name, documentation, value in (
            ("num_requests_running", "Requests that run.", state.num_running),
            ("num_requests_waiting", "Requests that wait.", state.num_waiting),
            ("num_requests_swapped", "Requests that wait in host memory.", state.num_swapped),
            ("kv_cache_usage_perc", "Share of the KV cache in use, in [0, 1].", usage),
        ):
            yield gauge(f"vllm:{name}", documentation, {model: value}, labels)
        for name, documentation, value in (
            ("num_preemptions_total", "Preemptions.", state.preemptions_total),
            (
                "prefix_cache_queries_total",
                "Tokens looked up in the prefix cache.",
                state.prefix_cache_queries_total,
            ),
            (
                "prefix_cache_hits_total",
                "Tokens found in the prefix cache.",
                state.prefix_cache_hits_total,
            ),
            ("spec_decode_num_draft_tokens_total", "Tokens drafted.", state.draft_tokens_total),
            (
                "spec_decode_num_accepted_tokens_total",
                "Drafted tokens that were right.",
                state.accepted_draft_tokens_total,
            ),
        ):
            yield counter(f"vllm:{name}", documentation, {model: value}, labels)
        counters = cell.counters
        for name, documentation, observed in (
            ("iteration_tokens_total", "Tokens computed in a step.", counters.step_tokens),
            ("request_queue_time_seconds", "Time in the queue.", counters.queue_seconds),
            ("request_prefill_time_seconds", "Time to compute a prompt.", counters.prefill_seconds),
            ("request_decode_time_seconds", "Time to decode.", counters.decode_seconds),
        ):
            yield histogram(f"vllm:{name}", documentation, {model: observed}, labels)
        yield gauge(
            "vllm:cache_config_info",
            "1; the labels are the sizes of the cache.",
            {(*model, str(state.block_size), str(state.num_blocks)): 1.0},
            ("model_name", "block_size", "num_gpu_blocks"),
        )
