"""A step that was started, and what comes of it once the device has done it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_svc.device.base import Device, Fetched
from worker_svc.sampling.logprobs import StepReports
from worker_svc.steps.batch import StepBatch
from worker_svc.steps.step import IntArray, PromptLogprobs, StepOutcome


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Moments of a step, as Device.mark returns them.

    Attributes:
        started: before the forward pass.
        computed: when the logits are there.
        finished: when the tokens are.
    """

    started: Any
    computed: Any
    finished: Any


class PendingStep:
    """A step under way.

    Args:
        device: that does it.
        batch: that it computes.
        mark: of its tokens in the mirror.
        fetched: token_ids [num_sampling] int64, ok [num_sampling] bool and the tensors of
            `reports`, on their way.
        marks: of its times.
        swap_us: returns how long blocks took to move, once the step is done.
        reports: what is told with its tokens; None on ranks above 0, which tell of none.
        prompt_logprobs: of the sequences that asked for them.

    Attributes:
        batch: that it computes.
        mark: of its tokens in the mirror.
    """

    def __init__(
        self,
        device: Device,
        batch: StepBatch,
        mark: int,
        fetched: Fetched,
        marks: StepMarks,
        swap_us: Callable[[], int],
        *,
        reports: StepReports | None,
        prompt_logprobs: tuple[PromptLogprobs, ...] = (),
    ) -> None:
        self.batch = batch
        self.mark = mark
        self._device = device
        self._fetched = fetched
        self._marks = marks
        self._swap_us = swap_us
        self._reports = reports
        self._prompt_logprobs = prompt_logprobs

    @property
    def is_done(self) -> bool:
        """Whether `result` will not wait."""
        return self._device.is_immediate

    def sampled(self) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Wait for the tokens [num_sampling], and whether their logits were finite."""
        token_ids, ok, *_ = self._fetched.wait()
        return token_ids, ok

    def result(self) -> StepOutcome:
        """Wait for the step; may be called in another thread than it was started in."""
        token_ids, ok, *reported = self._fetched.wait()
        marks, elapsed_us = self._marks, self._device.elapsed_us
        times = (
            elapsed_us(marks.started, marks.computed),
            elapsed_us(marks.computed, marks.finished),
            self._swap_us(),
        )
        if self._reports is None:
            return StepOutcome((), (), (), (), *times)
        failed_ids, sampling_ids = self.batch.failed_ids, self.batch.sampling_ids
        logprobs = self._reports.read(token_ids, reported)
        if not ok.all():
            ids = np.array(sampling_ids, np.int64)
            failed_ids += tuple(ids[~ok].tolist())
            sampling_ids, token_ids = tuple(ids[ok].tolist()), token_ids[ok]
            logprobs = tuple(itertools.compress(logprobs, ok))
        return StepOutcome(
            sampling_ids,
            tuple(token_ids.tolist()),
            failed_ids,
            logprobs,
            *times,
            self._prompt_logprobs,
        )
