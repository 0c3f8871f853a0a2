"""The metrics of a worker, read from its counters when Prometheus asks for them."""

from collections.abc import Iterator

import torch
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire.contract.errors import ConfigError
from quire.observe.metrics.families import counter, gauge, histogram
from worker_svc.device.host_memory import available_memory_bytes
from worker_svc.service.block_transfers import BlockTransfers
from worker_svc.service.counters import Counters
from worker_svc.service.epochs import EpochGuard
from worker_svc.worker import Worker


class WorkerCollector(Collector):
    """The metrics of a worker.

    Args:
        worker: the worker.
        counters: counters of its steps.
        epochs: the epochs that it has seen.
        transfers: blocks on their way between workers.
    """

    def __init__(
        self,
        worker: Worker,
        counters: Counters,
        epochs: EpochGuard,
        transfers: BlockTransfers,
    ) -> None:
        self._worker = worker
        self._transfers = transfers
        self._counters = counters
        self._epochs = epochs

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._holdings()
        yield from self._steps()

    def _holdings(self) -> Iterator[Metric]:
        held, rank = self._worker.describe(), self._worker.rank
        cache_bytes, host_cache_bytes = self._worker.cache_bytes
        model = "" if held.model is None else held.model.name
        yield gauge(
            "quire_worker_info",
            "1; the labels name the device, its instruction set, the model and the rank.",
            {(held.device, held.isa, model, "" if rank is None else str(rank)): 1.0},
            ("device", "isa", "model", "rank"),
        )
        yield gauge(
            "quire_worker_epoch",
            "Highest epoch that a scheduler has sent.",
            self._epochs.highest,
        )
        yield gauge(
            "quire_worker_driven",
            "1 while a scheduler has its stream of steps open.",
            float(bool(self._epochs.driver_name)),
        )
        yield gauge(
            "quire_worker_memory_bytes",
            "Memory that the worker has allocated, by use.",
            {
                ("weights",): held.weight_bytes,
                ("kv_cache",): cache_bytes,
                ("kv_cache_host",): host_cache_bytes,
            },
            ("use",),
        )
        yield gauge("quire_worker_kv_blocks", "Blocks of the KV cache.", held.num_blocks)
        yield counter(
            "quire_worker_shipped_blocks_total",
            "Blocks sent to other workers, and received from them.",
            {("sent",): self._transfers.num_sent, ("received",): self._transfers.num_received},
            ("direction",),
        )
        yield from _device_memory(self._worker.torch_device)

    def _steps(self) -> Iterator[Metric]:
        counters = self._counters
        yield counter(
            "quire_worker_phase_seconds_total",
            "Time of steps by phase: the forward pass, sampling, and moving blocks beside them.",
            {
                ("model",): 1e-6 * counters.model_us,
                ("sample",): 1e-6 * counters.sample_us,
                ("swap",): 1e-6 * counters.swap_us,
            },
            ("phase",),
        )
        yield counter(
            "quire_worker_computed_tokens_total", "Tokens computed.", counters.num_computed_tokens
        )
        yield counter(
            "quire_worker_sampled_tokens_total",
            "Tokens sampled; 0 on ranks above 0.",
            counters.num_sampled_tokens,
        )
        yield counter(
            "quire_worker_failed_sequences_total",
            "Sequences whose logits were not finite.",
            counters.num_failed_sequences,
        )
        times = self._worker.grammar_times
        yield counter(
            "quire_worker_grammar_masks_total",
            "Masks of grammars: one for each token that is sampled or drafted under one.",
            times.num_masks,
        )
        yield counter(
            "quire_worker_failed_grammars_total",
            "Sequences under a grammar that were left no token: by a limit of it, or a dead end.",
            counters.num_failed_grammars,
        )
        yield counter(
            "quire_worker_grammar_seconds_total",
            "Time of masks: filling them beside the model, and steps' wait for them.",
            {("fill",): 1e-6 * times.fill_us, ("wait",): 1e-6 * times.wait_us},
            ("phase",),
        )
        yield histogram(
            "quire_worker_step_seconds", "Time the worker spent on a step.", counters.step_seconds
        )
        yield histogram(
            "quire_worker_step_tokens", "Tokens computed in a step.", counters.step_tokens
        )


def _device_memory(device: torch.device) -> Iterator[Metric]:
    """Yield the free memory of the GPU or the machine."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        yield gauge("quire_worker_device_memory_total_bytes", "Memory of the GPU.", total)
    else:
        try:
            free = available_memory_bytes()
        except ConfigError:
            return  # the machine does not report it
    yield gauge(
        "quire_worker_device_memory_free_bytes",
        "Free memory of the GPU, or of the machine.",
        free,
    )
