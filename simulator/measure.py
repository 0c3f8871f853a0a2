"""Real steps of a real worker on this machine's CPU, over a grid of shapes."""

import time
from collections.abc import Callable
from pathlib import Path

from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.workers import LoadSpec
from quire.wire.worker import (
    execute_request_from_proto,
    execute_request_to_proto,
    step_result_from_proto,
    step_result_to_proto,
)
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.scheduler import Scheduler
from simulator.fit import MeasuredStep
from simulator.step_shapes import StepShapes
from worker_svc.device.cpu import CpuDevice
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.runner import ModelRunner

_BLOCK_SIZE = 16
_NUM_SEQUENCES = (1, 2, 4, 8, 16, 32)
_PROMPT_SHARES = (0.02, 0.15, 0.5)
_NUM_OUTPUT_TOKENS = 10
_REPETITIONS = 8


def measure_steps(model: Path, report: Callable[[str], None]) -> list[MeasuredStep]:
    """Run steps of different shapes on one CPU thread; return what each took.

    The same steps are run several times, and the least time counts: other load only adds to it.

    Args:
        model: directory.
        report: called with a line about what is being done.
    """
    report(f"loading {model.name}")
    worker = _Worker(model)
    rounds = []
    for repetition in range(_REPETITIONS + 1):
        report(f"measuring steps, round {repetition} of {_REPETITIONS}")
        rounds.append(worker.run_grid())
    # The first round warms caches and allocators up.
    return [
        MeasuredStep(steps[0].shape, min(each.step_us for each in steps))
        for steps in zip(*rounds[1:], strict=True)
    ]


class _Worker:
    """A model and a scheduler, connected by their messages."""

    def __init__(self, model: Path) -> None:
        device = CpuDevice()
        device.start_thread(1)
        loaded = load_model(LoadSpec(str(model)), "measured", ParallelGroup(), device)
        self._max_model_len = loaded.info.max_model_len
        num_blocks = max(_NUM_SEQUENCES) * (-(-self._max_model_len // _BLOCK_SIZE) + 1)
        self._runner = ModelRunner(loaded, _BLOCK_SIZE, num_blocks, 0, max(_NUM_SEQUENCES))
        self._scheduler = Scheduler(
            BlockSpaceManager(_BLOCK_SIZE, num_blocks, 0.0, 0),
            max_num_batched_tokens=1024,
            max_num_seqs=max(_NUM_SEQUENCES),
            max_model_len=self._max_model_len,
            eos_token_ids=(),
            enable_prefix_caching=False,
        )
        self._shapes = StepShapes()
        self._step_id = 0

    def run_grid(self) -> list[MeasuredStep]:
        """Run prompts, decoding and both together, for every number and length of sequences."""
        steps: list[MeasuredStep] = []
        for num_sequences in _NUM_SEQUENCES:
            for share in _PROMPT_SHARES:
                length = max(1, int(share * self._max_model_len))
                # The second half comes when the first is decoding.
                self._add((num_sequences + 1) // 2, length)
                steps += [self._step() for _ in range(_NUM_OUTPUT_TOKENS // 2)]
                self._add(num_sequences // 2, length)
                while self._scheduler.has_unfinished:
                    steps.append(self._step())
        return steps

    def _add(self, count: int, length: int) -> None:
        params = SamplingParams(
            seed=0, temperature=0.8, max_tokens=_NUM_OUTPUT_TOKENS, ignore_eos=True
        )
        for index in range(count):
            prompt = [5 + (index + i) % 200 for i in range(length)]
            self._scheduler.add(Submission(prompt, params))

    def _step(self) -> MeasuredStep:
        outputs = self._scheduler.schedule()
        assert outputs is not None, "there is always something to compute here"
        shape, _ = self._shapes.measure(outputs)
        self._step_id += 1
        outputs.epoch, outputs.step_id = 1, self._step_id
        request = execute_request_to_proto(outputs)
        message = request.SerializeToString()
        # What a worker does between two messages.
        began = time.perf_counter()
        received = execute_request_from_proto(request.FromString(message))
        response = step_result_to_proto(self._runner.execute(received).result())
        answer = response.SerializeToString()
        step_us = 1e6 * (time.perf_counter() - began)
        self._scheduler.update(step_result_from_proto(response.FromString(answer)))
        return MeasuredStep(shape, step_us)
