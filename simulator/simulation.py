"""The loop over intervals: messages between routers and cells, and the clients beyond."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from router.cells.choice import RoutingPolicy
from simulator.config import SimulationConfig
from simulator.cost_model import StepShape
from simulator.messages import (
    Answered,
    Heartbeat,
    IntervalOrders,
    IntervalStart,
    Placed,
    RouterNews,
    SimulatedSubmission,
)
from simulator.metrics import Metrics
from simulator.outages import Outages
from simulator.processes import Shards, open_shards
from simulator.texts import Library
from simulator.traffic import Traffic


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """How far a run has come.

    Attributes:
        simulated_s: simulated time that has passed.
        num_open: requests under way.
        num_answered: requests answered so far.
    """

    simulated_s: float
    num_open: int
    num_answered: int


def simulate(
    config: SimulationConfig,
    policy: RoutingPolicy,
    num_processes: int = 1,
    progress: Callable[[SimulationProgress], None] = lambda _: None,
) -> Metrics:
    """Run a cluster under its traffic until the last request is answered.

    The result depends on the configuration and the policy only, not on the number of processes.

    Args:
        config: what to simulate.
        policy: of the routers.
        num_processes: to compute with.
        progress: called after each interval.
    """
    with open_shards(config, policy, num_processes) as shards:
        run = _Run(config, policy, shards)
        began, began_cpu = time.perf_counter(), time.process_time()
        while run.is_unfinished:
            run.interval()
            progress(run.progress)
        run.metrics.wall_s = time.perf_counter() - began
        run.metrics.cpu_s = shards.finish() + time.process_time() - began_cpu
        return run.metrics


class _Run:
    """A simulation under way."""

    def __init__(self, config: SimulationConfig, policy: RoutingPolicy, shards: Shards) -> None:
        self._config = config
        self._shards = shards
        library = Library(config.traffic, config.seed)
        self._traffic = Traffic(
            config.traffic,
            library,
            config.cell.max_model_len,
            assumed_token_s(config, library),
            config.seed,
        )
        self._outages = Outages(config)
        self._num_intervals = 0
        self._num_open = 0
        self._heartbeats: list[Heartbeat] = []
        self._started: list[int] = []
        self._answered: list[Answered] = []
        self._returned: list[SimulatedSubmission] = []
        self.metrics = Metrics(config, policy, self._traffic.curve.bursts)

    @property
    def _now(self) -> float:
        return self._num_intervals * self._config.heartbeat_s

    @property
    def is_unfinished(self) -> bool:
        """Whether requests are under way or to come."""
        is_day = self._now < self._config.traffic.duration_s
        # The last answers are reported to the routers in the interval after.
        has_unreported = bool(self._answered)
        return is_day or self._num_open > 0 or self._traffic.has_coming or has_unreported

    @property
    def progress(self) -> SimulationProgress:
        """How far the run has come."""
        return SimulationProgress(self._now, self._num_open, self.metrics.num_answered)

    def interval(self) -> None:
        """Let routers place the requests of the next interval, and the cells run through it."""
        start_s, end_s = self._now, (self._num_intervals + 1) * self._config.heartbeat_s
        placed = self._place(start_s, end_s)
        self._run_cells(placed, end_s)
        self._num_intervals += 1

    def _place(self, start_s: float, end_s: float) -> list[Placed]:
        num_routers, num_shards = self._config.num_routers, self._shards.num_shards
        news = [RouterNews([], [], []) for _ in range(num_routers)]
        for request_id in self._started:
            news[request_id % num_routers].started.append(request_id)
        for answered in self._answered:
            request_id = answered.submission.request.request_id
            news[request_id % num_routers].ended.append(request_id)
        delay_s = self._config.cell.cost_model.request_us / 1e6
        for submission in self._returned:
            request_id = submission.request.request_id
            news[request_id % num_routers].ended.append(request_id)
            moved = submission._replace(at_s=start_s + delay_s)
            news[request_id % num_routers].submissions.append(moved)
        arrivals = self._traffic.arrivals(start_s, end_s)
        for request in arrivals:
            submission = SimulatedSubmission(request, request.arrival_s + delay_s)
            news[request.request_id % num_routers].submissions.append(submission)
        self._num_open += len(arrivals)
        self.metrics.add_arrivals(len(arrivals))
        joined, left = self._outages.take_news()
        starts = [
            IntervalStart(
                start_s,
                joined,
                left,
                self._heartbeats,
                {each: news[each] for each in range(index, num_routers, num_shards)},
            )
            for index in range(num_shards)
        ]
        placed = [each for part in self._shards.place(starts) for each in part]
        placed.sort(key=lambda each: (each.submission.at_s, each.submission.request.request_id))
        return placed

    def _run_cells(self, placed: list[Placed], end_s: float) -> None:
        num_shards = self._shards.num_shards
        killed, drained, started = self._outages.begin(end_s)
        orders = [
            IntervalOrders(end_s, [], [], [], [], end_s + self._config.drain_timeout_s)
            for _ in range(num_shards)
        ]
        for each in placed:
            orders[each.cell_id % num_shards].placed.append(each)
        for cell_id in killed:
            orders[cell_id % num_shards].killed.append(cell_id)
        for cell_id in drained:
            orders[cell_id % num_shards].drained.append(cell_id)
        for cell_id in started:
            orders[cell_id % num_shards].started.append(cell_id)
        results = self._shards.run(orders)
        self._heartbeats = sorted(each for result in results for each in result.heartbeats)
        self._started = [each for result in results for each in result.events.started]
        self._returned = [each for result in results for each in result.events.returned]
        self._answered = [each for result in results for each in result.events.answered]
        # In an order that does not depend on which process has which cell.
        self._started.sort()
        self._returned.sort(key=lambda each: each.request.request_id)
        self._answered.sort(key=lambda each: (each.end_s, each.submission.request.request_id))
        for answered in self._answered:
            self._traffic.answered(answered.submission.request, answered.end_s)
        self._num_open -= len(self._answered)
        for result in results:
            self._outages.gone(result.gone, end_s)
        self.metrics.add_interval(end_s, self._answered, results, self._num_open)


def assumed_token_s(config: SimulationConfig, library: Library) -> float:
    """Return the time per token of an answer, in seconds, if all shared text is cached.

    It is the time of a step with `streams` evenly spread over the cells: one token of each answer
    under way, and the messages of the requests that arrive meanwhile.
    """
    traffic, cell = config.traffic, config.cell
    per_cell = max(1, min(round(traffic.streams / config.num_cells), cell.max_num_seqs))
    messages_per_token = traffic.message.mean / traffic.answer.mean
    shared = sum(library.system_prompt_lengths) / traffic.num_tenants
    documents = sum(library.document_lengths) / traffic.num_documents
    turns = traffic.mean_turns * (traffic.message.mean + traffic.answer.mean) / 2
    context = shared + traffic.document_share * documents + turns
    shape = StepShape(
        num_tokens=round(per_cell * (1 + messages_per_token)),
        num_sequences=per_cell,
        num_context_tokens=round(per_cell * context),
    )
    return cell.cost_model.step_us(shape) / 1e6
