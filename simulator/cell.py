"""A cell in simulated time: the real scheduler, and workers of which only the time is computed."""

from collections import Counter, deque
from dataclasses import dataclass
from functools import cache

from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.contract.steps import StepResult
from router.cells.choice import ReportedLoad
from scheduler_svc.blocks.manager import BlockSpaceManager
from scheduler_svc.policy.outstanding import outstanding_tokens
from scheduler_svc.policy.progress import Progress
from scheduler_svc.policy.scheduler import Scheduler
from simulator.config import CellConfig
from simulator.messages import Answered, CellEvents, Heartbeat, SimulatedSubmission, Usage
from simulator.step_shapes import StepShapes
from simulator.texts import FILLER_TOKEN, Library


@dataclass(slots=True)
class _StepInFlight:
    """A step that the workers run.

    Attributes:
        sampling: sequences that get a token in it.
        ends_s: when its result is back, in simulated seconds.
        num_tokens: computed in it.
        step_us: its duration.
    """

    sampling: list[int]
    ends_s: float
    num_tokens: int
    step_us: float


class SimulatedCell:
    """A scheduler that is driven as the service drives it, on a simulated clock.

    While a step is always ahead, steps follow one another without a gap: a step that is scheduled
    when another ends runs after the one that is under way then. Time passes in `run_until` only.

    Args:
        cell_id: unique.
        config: of the cell.
        library: of the texts that prompts are made of.
    """

    def __init__(self, cell_id: int, config: CellConfig, library: Library) -> None:
        self.cell_id = cell_id
        self._config = config
        self._model = config.cost_model
        self._library = library
        self.blocks = BlockSpaceManager(
            config.block_size, config.num_blocks, config.watermark, config.num_host_blocks
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            eos_token_ids=(),
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self.scheduler.preemption_costs.block_us = self._model.moved_block_us
        self._shapes = StepShapes()
        self._arriving: deque[SimulatedSubmission] = deque()
        self._in_flight: deque[_StepInFlight] = deque()
        # By group id, of those that have not ended.
        self._submissions: dict[int, SimulatedSubmission] = {}
        self._first_token_s: dict[int, float] = {}
        self._without_token: set[int] = set()
        self._num_output_tokens: Counter[int] = Counter()
        # Since the last events were taken.
        self._started: list[int] = []
        self._answered: list[Answered] = []
        self._num_steps = 0
        self._num_tokens = 0
        self._busy_us = 0.0

    @property
    def num_requests(self) -> int:
        """Requests that are on their way here, wait or run."""
        return len(self._arriving) + len(self._submissions)

    def submit(self, submission: SimulatedSubmission) -> None:
        """Take a request that arrives at `at_s`, which is not past; calls must be in that order."""
        self._arriving.append(submission)

    def run_until(self, end_s: float) -> None:
        """Let time pass until `end_s`."""
        while True:
            if self._in_flight:
                now = self._in_flight[0].ends_s
            elif self._arriving:
                now = self._arriving[0].at_s
            else:
                return
            if now >= end_s:
                break
            if self._in_flight:
                self._take_arrivals(now)
                self._finish_step(now)
            else:
                self._take_arrivals(now)
            self._send_steps(now)
        # Requests that arrive while a step runs count in the heartbeat, too.
        self._take_arrivals(end_s)
        if not self._in_flight:
            self._send_steps(end_s)

    def _take_arrivals(self, now: float) -> None:
        while self._arriving and self._arriving[0].at_s <= now:
            submission = self._arriving.popleft()
            request, num_before = submission.request, submission.num_output_tokens
            group_id, _ = self.scheduler.add(
                Submission(
                    self._library.prompt(request),
                    _sampling_params(request.num_output_tokens),
                    {0: [FILLER_TOKEN] * num_before} if num_before else None,
                ),
                submission.at_s,
            )
            self._submissions[group_id] = submission
            self._num_output_tokens[group_id] = num_before
            if submission.first_token_s is None:
                self._without_token.add(group_id)
            else:
                self._first_token_s[group_id] = submission.first_token_s

    def _send_steps(self, now: float) -> None:
        """Schedule until as many steps are in flight as may be."""
        while len(self._in_flight) < self._config.max_steps_in_flight:
            outputs = self.scheduler.schedule()
            if outputs is None:
                if self._in_flight or not self.scheduler.has_unfinished:
                    return
                continue  # the groups that ran were preempted; the next call resumes them
            shape, sampling = self._shapes.measure(outputs)
            step_us = self._model.step_us(shape)
            starts_s = now + self._model.dispatch_us / 1e6
            if self._in_flight:
                starts_s = max(starts_s, self._in_flight[-1].ends_s)
            ends_s = starts_s + step_us / 1e6
            self._in_flight.append(_StepInFlight(sampling, ends_s, shape.num_tokens, step_us))

    def _finish_step(self, now: float) -> None:
        step = self._in_flight.popleft()
        sampling = step.sampling
        progress = self.scheduler.update(StepResult(sampling, [FILLER_TOKEN] * len(sampling)))
        self.scheduler.preemption_costs.observe_step(step.num_tokens, step.step_us)
        self._num_steps += 1
        self._busy_us += step.step_us
        self._deliver(progress, now + self._model.answer_us / 1e6)

    def _deliver(self, progress: Progress, at_s: float) -> None:
        """Record what clients receive at `at_s`."""
        self._num_tokens += len(progress.group_ids)
        self._num_output_tokens.update(progress.group_ids)
        if self._without_token:
            for group_id in self._without_token.intersection(progress.group_ids):
                self._without_token.remove(group_id)
                self._first_token_s[group_id] = at_s
                self._started.append(self._submissions[group_id].request.request_id)
        for group_id in progress.ended_group_ids:
            submission = self._submissions.pop(group_id)
            num_tokens = self._num_output_tokens.pop(group_id)
            assert num_tokens == submission.request.num_output_tokens, "an answer of another length"
            first_token_s = self._first_token_s.pop(group_id)
            self._answered.append(Answered(submission, first_token_s, at_s))

    # ------------------------------------------------------------------ reports

    def heartbeat(self, with_digest: bool = True) -> Heartbeat:
        """Return a heartbeat, with what has changed in the prefix cache since the last one.

        Args:
            with_digest: whether the policy of the routers needs what the cache holds.
        """
        load = ReportedLoad(
            outstanding_tokens(self.scheduler.queues, self.scheduler.prefix_cache),
            self.blocks.num_free_blocks,
        )
        delta = self.blocks.digest.take_delta()
        added, removed = (tuple(delta.added), tuple(delta.removed)) if with_digest else ((), ())
        return Heartbeat(self.cell_id, load, self.num_requests, added, removed)

    def take_events(self) -> CellEvents:
        """Return what happened to requests since the last call."""
        events = CellEvents(self._started, self._answered, [])
        self._started, self._answered = [], []
        return events

    @property
    def usage(self) -> Usage:
        """What the cell has done so far."""
        scheduler = self.scheduler
        return Usage(
            num_tokens_looked_up=scheduler.prefix_cache.num_tokens_looked_up,
            num_tokens_found=scheduler.prefix_cache.num_tokens_found,
            num_preemptions=scheduler.counters.preemptions,
            num_recomputed_tokens=scheduler.counters.recomputed_tokens,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            busy_s=self._busy_us / 1e6,
        )

    def unfinished(self) -> list[SimulatedSubmission]:
        """Return the unfinished requests as another cell continues them."""
        interrupted = [
            submission._replace(
                num_output_tokens=self._num_output_tokens[group_id],
                first_token_s=self._first_token_s.get(group_id),
                num_moves=submission.num_moves + 1,
            )
            for group_id, submission in self._submissions.items()
        ]
        return interrupted + [
            each._replace(num_moves=each.num_moves + 1) for each in self._arriving
        ]

    def check_idle(self) -> None:
        """Raise AssertionError unless no request is left and every block is free."""
        assert not self.num_requests and not self._in_flight, "requests are left"
        assert not self.scheduler.has_unfinished, "groups are left"
        assert self.blocks.num_free_blocks == self.blocks.num_blocks, "blocks are lost"


@cache
def _sampling_params(num_output_tokens: int) -> SamplingParams:
    return SamplingParams(seed=0, max_tokens=num_output_tokens, ignore_eos=True)
