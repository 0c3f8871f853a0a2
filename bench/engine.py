"""Scheduler and worker in one process, joined by their messages: for benchmarks without sockets."""

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from quire.contract.engine_options import PreemptionMode
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs
from quire.contract.workers import LoadSpec
from quire.v1 import worker_pb2
from quire.wire.worker import (
    scheduler_outputs_from_proto,
    scheduler_outputs_to_proto,
    step_result_from_proto,
    step_result_to_proto,
)
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from worker_svc.cache.engine import block_bytes
from worker_svc.device.base import Device
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.pending import PendingStep
from worker_svc.steps.runner import ModelRunner


@dataclass(slots=True)
class Run:
    """What a run of requests took.

    Attributes:
        num_requests: how many there were.
        seconds: of all steps.
        num_steps: of them.
        blocks_used: summed over the steps.
        blocks_saved: by sharing, summed over the steps.
        swap_us: time spent on moving blocks, beside the model.
        device_us: time spent on forward passes and sampling.
        decode_us: the same, of each step that computed one token of every request.
        outputs: tokens of every sequence, by group and index; of beams, of the texts found.
    """

    num_requests: int = 0
    seconds: float = 0.0
    num_steps: int = 0
    blocks_used: int = 0
    blocks_saved: int = 0
    swap_us: int = 0
    device_us: int = 0
    decode_us: list[int] = field(default_factory=list)
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)


class Engine:
    """A model behind a scheduler.

    Args:
        model: directory.
        block_size: tokens of a block.
        num_blocks: of the cache.
        mode: of preemption.
        swap_factor: host memory for swapped blocks, in caches.
        max_num_seqs: that run at once.
        max_steps_in_flight: 2 starts a step before the one before it has ended.
        device: of the worker; None for the CPU.
        spec: what to load and how, beside the model; None for all as it is.
        enforce_eager: whether a GPU is to do without graphs.
        max_draft_tokens: most tokens drafted for a sequence in a step.
    """

    def __init__(
        self,
        model: Path,
        *,
        block_size: int = 16,
        num_blocks: int,
        mode: PreemptionMode = PreemptionMode.AUTO,
        swap_factor: int = 4,
        max_num_seqs: int = 256,
        max_steps_in_flight: int = 1,
        device: Device | None = None,
        spec: LoadSpec | None = None,
        enforce_eager: bool = False,
        max_draft_tokens: int = 0,
    ) -> None:
        self._max_steps_in_flight = max_steps_in_flight
        loaded = load_model(spec or LoadSpec(str(model)), "bench", ParallelGroup(), device)
        swap_space = swap_factor * num_blocks * block_bytes(loaded, block_size)
        self.runner = ModelRunner(
            loaded,
            block_size,
            num_blocks,
            swap_space,
            max_num_seqs,
            enforce_eager=enforce_eager,
        )
        self.runner.capture_graphs()
        self.loaded = loaded
        cache = self.runner.cache_engine
        self.blocks = BlockSpaceManager(block_size, num_blocks, 0.0, cache.num_host_blocks)
        self.scheduler = Scheduler(
            self.blocks,
            max_num_batched_tokens=2048,
            max_num_seqs=max_num_seqs,
            max_model_len=loaded.info.max_model_len,
            eos_token_ids=loaded.info.eos_token_ids,
            enable_prefix_caching=False,
            preemption_mode=mode,
            max_draft_tokens=max_draft_tokens,
        )
        self.scheduler.preemption_costs.block_us = cache.measure_block_us()

    def run(self, prompts: list[list[int]], params: SamplingParams) -> Run:
        """Run requests to their end."""
        run, began = Run(len(prompts)), time.perf_counter()
        for prompt in prompts:
            self.scheduler.add(Submission(prompt, params))
        under_way: deque[tuple[SchedulerOutputs, PendingStep]] = deque()
        while self.scheduler.has_unfinished or under_way:
            while len(under_way) < self._max_steps_in_flight:
                orders = self.scheduler.schedule()
                if orders is None:
                    break  # nothing to run, or what ran was preempted and comes back later
                run.num_steps += 1
                orders.epoch, orders.step_id = 1, run.num_steps
                message = scheduler_outputs_to_proto(orders)
                step = self.runner.execute(scheduler_outputs_from_proto(message))
                under_way.append((orders, step))
            if under_way:
                self._finish(*under_way.popleft(), run)
        run.seconds = time.perf_counter() - began
        return run

    def _finish(self, orders: SchedulerOutputs, step: PendingStep, run: Run) -> None:
        """Wait for a step and update the scheduler."""
        result = step.result()
        self._update(step_result_to_proto(result), sum(orders.num_scheduled_tokens), run)
        num_moved = len(orders.blocks_to_swap_out) + len(orders.blocks_to_swap_in)
        if num_moved:
            self.scheduler.preemption_costs.observe_swap(num_moved, result.swap_us)
        run.swap_us += result.swap_us
        device_us = result.model_us + result.sample_us
        run.device_us += device_us
        if sum(orders.num_scheduled_tokens) == run.num_requests:
            run.decode_us.append(device_us)

    def _update(self, result: worker_pb2.StepResult, num_tokens: int, run: Run) -> None:
        self.scheduler.preemption_costs.observe_step(num_tokens, result.model_us)
        run.blocks_used += self.blocks.num_blocks - self.blocks.num_free_blocks
        run.blocks_saved += self.blocks.num_blocks_saved
        progress = self.scheduler.update(step_result_from_proto(result))
        sampled = zip(
            progress.group_ids, progress.sequence_indices, progress.token_ids, strict=True
        )
        for group_id, index, token_id in sampled:
            run.outputs.setdefault((group_id, index), []).append(token_id)
        for group_id, hypotheses in progress.hypotheses:
            for index, hypothesis in enumerate(hypotheses):
                run.outputs[group_id, index] = list(hypothesis.token_ids)
