"""Steps that were started, and what comes of them once the device has done them."""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.contract.errors import UnavailableError
from quire.contract.steps import StepResult
from worker_svc.arrays import IntArray
from worker_svc.device.base import Array, Device, Fetched
from worker_svc.sampling.pooling import Pooled
from worker_svc.sampling.sampler import Sampled
from worker_svc.steps.batch import Batch
from worker_svc.steps.drafts import rows_that_count
from worker_svc.steps.mirror import SequenceMirror


@dataclass(frozen=True, slots=True)
class Marks:
    """Moments of a step, as Device.mark returns them.

    Attributes:
        started: before the forward pass.
        computed: when the logits are there.
        finished: when the tokens are there.
    """

    started: Any
    computed: Any
    finished: Any


class CheckedCopies:
    """What a step has fetched, if its exchanges with other ranks have not failed.

    Args:
        fetched: tensors of the step, and last what the communicator's `failure` returned behind it.
    """

    def __init__(self, fetched: Fetched) -> None:
        self._fetched = fetched

    def wait(self) -> list[Array]:
        """See Fetched.

        Raises:
            UnavailableError: an exchange has failed, so that what was computed means nothing.
        """
        *arrays, failed = self._fetched.wait()
        if failed[0] != 0:
            raise UnavailableError(
                "another rank was lost: a sum over ranks was not awaited further"
            )
        return arrays


class PendingStep:
    """A step under way.

    Args:
        device: the device that computes it.
        batch: its batch.
        sampled: its tokens, on the device.
        pooled: its vectors, on the device.
        fetched: token_ids, ok and reported of `sampled` and the tensors of `pooled`, on their way
            to the host.
        marks: moments from which its times are taken.
        swap_us: returns the microseconds that moving its blocks took, once the step is done.

    Attributes:
        batch: its batch.
    """

    def __init__(
        self,
        device: Device,
        batch: Batch,
        sampled: Sampled,
        pooled: Pooled,
        fetched: Fetched,
        marks: Marks,
        swap_us: Callable[[], int],
    ) -> None:
        self.batch = batch
        self._device = device
        self._sampled = sampled
        self._pooled = pooled
        self._fetched = fetched
        self._marks = marks
        self._swap_us = swap_us

    @property
    def is_done(self) -> bool:
        """Whether `result` returns at once."""
        return self._device.is_immediate

    def sampled(self) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Wait for the step; return token_ids [num_sampling] int64 and ok [num_sampling] bool.

        See Sampled.
        """
        token_ids, ok, *_ = self._fetched.wait()
        return token_ids, ok

    def failed_vectors(self) -> list[int]:
        """Wait for the step; return the sequences whose vector is not finite, on rank 0."""
        return self._vectors()[1]

    def _vectors(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        if not self._pooled.sequence_ids:
            return [], []
        return self._pooled.read(self._fetched.wait()[-len(self._pooled.tensors) :])

    def result(self) -> StepResult:
        """Wait for the step; may be called in another thread than it was started in.

        The caller adds epoch, number and `worker_us`.
        """
        token_ids, ok, *reported = self._fetched.wait()
        del reported[len(self._sampled.reported) :]  # vectors
        marks, elapsed_us = self._marks, self._device.elapsed_us
        result = StepResult(
            (),
            (),
            model_us=elapsed_us(marks.started, marks.computed),
            sample_us=elapsed_us(marks.computed, marks.finished),
            swap_us=self._swap_us(),
        )
        sampling_ids, failed_ids, is_reported = self.batch.sampling_ids, (), ok
        barred_ids: tuple[int, ...] = ()
        if self.batch.expected_ids is not None:
            counts = rows_that_count(self.batch.expected_ids, token_ids, ok)
            is_reported, ok = ok & counts, ok | ~counts
        is_whole = bool(is_reported.all())
        if not is_whole:
            ids = np.array(sampling_ids, np.int64)
            failed_ids = tuple(ids[~ok].tolist())
            barred = self._sampled.barred
            barred_ids = tuple(int(ids[row]) for row in sorted(barred) if not ok[row])
            sampling_ids = tuple(ids[is_reported].tolist())
        result = replace(
            result, sequence_ids=sampling_ids, token_ids=token_ids[is_reported].tolist()
        )
        if self._sampled.logprobs is None:
            return result  # a rank that was told the tokens, which the scheduler compares
        vectors, failed_vectors = self._vectors()
        logprobs = self._sampled.logprobs.read(token_ids, reported)
        return replace(
            result,
            failed_sequence_ids=(*self.batch.failed_ids, *failed_vectors, *failed_ids),
            logprobs=logprobs if is_whole else tuple(itertools.compress(logprobs, is_reported)),
            prompt_logprobs=self._sampled.prompt_logprobs,
            num_draft_tokens=self.batch.num_drafted,
            vectors=vectors,
            barred_sequence_ids=barred_ids,
        )

    def num_failed(self, result: StepResult) -> tuple[int, int]:
        """Return how many sequences have failed in this step: by logits, and by their grammar.

        By its grammar are both one that has failed and one under which nothing was left; one that
        its request left no token without a grammar counts as neither.

        Args:
            result: of this step.
        """
        failed_ids = {*result.failed_sequence_ids}.difference(self.batch.failed_ids)
        barred_ids = failed_ids.intersection(result.barred_sequence_ids)
        by_grammar = failed_ids & self._sampled.failed_grammar_ids
        by_logits = failed_ids - barred_ids - by_grammar
        by_grammar |= barred_ids & self._sampled.grammar_ids
        return len(by_logits), len(by_grammar)


class PendingSteps:
    """The steps whose tokens the mirror has yet to learn, oldest first.

    Args:
        mirror: learns them.
    """

    def __init__(self, mirror: SequenceMirror) -> None:
        self._mirror = mirror
        self._steps: deque[PendingStep] = deque()

    def add(self, step: PendingStep) -> None:
        """Add the step that was just started."""
        self._steps.append(step)

    def settle(self, leave: int = 0) -> None:
        """Wait for all steps but the last `leave` and write their tokens into the mirror.

        How far a sequence with drafts has come must be known before the next step: the last step is
        not left either if it has any.

        Mutates: the mirror.

        Raises:
            UnavailableError: an exchange with other ranks has failed in one of them, and so in all
                behind it; all sequences are forgotten.
        """
        if self._steps and self._steps[-1].batch.expected_ids is not None:
            leave = 0
        while len(self._steps) > leave:
            step = self._steps.popleft()
            try:
                sampled, failed_vectors = step.sampled(), step.failed_vectors()
            except UnavailableError:
                self._steps.clear()
                self._mirror.clear()
                raise
            self._mirror.settle(step.batch, *sampled, failed_vectors)
