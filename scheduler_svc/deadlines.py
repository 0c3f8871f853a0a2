"""Which requests of a cell would be late: what was predicted of each, and what came of it."""

import sys

from quire.contract.errors import DeadlineExceededError
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.policy.first_token_times import FirstTokenTimes, Prediction
from scheduler_svc.policy.group_queue import queue_order
from scheduler_svc.policy.progress import Phase, Progress
from scheduler_svc.policy.queues import Queues
from scheduler_svc.workers.executed_step import ExecutedStep

EXPIRED = "deadline: must be in the future, got one that has passed"
# The phases of a request that ran from its start to its end.
_UNDISTURBED = (Phase.QUEUED, Phase.PREFILL, Phase.DECODE)


class Deadlines:
    """Predicts when requests have their first token, and refuses those that would be late.

    Args:
        config: of the cell.
        queues: of its scheduler.

    Attributes:
        times: what the predictions are made of.
    """

    def __init__(self, config: SchedulerConfig, queues: Queues) -> None:
        self.times = FirstTokenTimes(config.max_num_batched_tokens)
        self._queues = queues
        self._priority_ageing_s = config.priority_ageing_s
        self._max_num_seqs = config.max_num_seqs
        # In seconds, by group.
        self._predicted: dict[int, float] = {}

    def check(self, submission: Submission, now: float) -> float:
        """Return the predicted time to the first token, in seconds; 0 if it cannot be predicted.

        Raises:
            DeadlineExceededError: the deadline has passed.
            UnreachableDeadlineError: the request would not have a token by then.
        """
        order = queue_order(now, submission.priority, self._priority_ageing_s, sys.maxsize)
        num_ahead = self._queues.waiting.num_ahead(
            submission.tenant, submission.tenant_weight, order
        )
        num_running = self._queues.num_running_seqs
        predicted_s = self.times.predict(len(submission.prompt_token_ids), num_ahead, num_running)
        if submission.deadline_ms is not None:
            if not submission.deadline_ms:
                raise DeadlineExceededError(EXPIRED)
            params = submission.sampling_params
            # With nothing before it, only its own first token would show a prediction to be wrong.
            is_next = not num_ahead and num_running + params.width <= self._max_num_seqs
            # What has begun elsewhere goes on as long as it can.
            if not (is_next or submission.was_queued or submission.outputs):
                prediction = self.times.prediction(predicted_s, params, num_running, now)
                prediction.check(1e-3 * submission.deadline_ms)
        return predicted_s

    def expect(self, group_id: int, predicted_s: float) -> None:
        """Record what was predicted of a group, to compare it with what comes."""
        self._predicted[group_id] = predicted_s

    def forget(self, group_id: int) -> None:
        """Drop what was predicted of a group, if anything: it ends otherwise."""
        self._predicted.pop(group_id, None)

    def observe(self, executed: ExecutedStep, progress: Progress, now: float) -> None:
        """Learn from a step, and from the groups that have ended with it."""
        self.times.observe_step(executed.num_tokens, executed.elapsed_us, self._queues, now)
        for group_id in progress.ended_group_ids:
            predicted_s = self._predicted.pop(group_id, 0.0)
            intervals = progress.times[group_id].intervals
            if predicted_s and tuple(each.phase for each in intervals) == _UNDISTURBED:
                came_s = intervals[1].end_s
                self.times.observe_first_token(predicted_s, came_s - intervals[0].start_s, came_s)

    def predict_first_token(self, now: float) -> Prediction:
        """Return what a request of one token may expect that comes now."""
        num_running = self._queues.num_running_seqs
        predicted_s = self.times.predict(1, len(self._queues.waiting), num_running)
        return self.times.prediction(predicted_s, SamplingParams(), 0, now)
