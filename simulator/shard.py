"""The part of a simulation that one process computes: some of the routers, some of the cells."""

from router.cells.choice import RoutingPolicy
from simulator.cell import SimulatedCell
from simulator.config import SimulationConfig
from simulator.messages import (
    Answered,
    CellEvents,
    IntervalOrders,
    IntervalResult,
    IntervalStart,
    Placed,
    SimulatedSubmission,
    Usage,
)
from simulator.router import SimulatedRouter
from simulator.texts import Library

MAX_CELLS_COUNTED = 64


class Shard:
    """Routers and cells of one process; those of other processes are reached by messages only.

    An interval is one call of `place` on every shard, then one of `run` on every shard.

    Args:
        config: of the whole cluster.
        policy: of the routers.
        index: of this shard.
        num_shards: routers and cells are dealt out to them by number.
    """

    def __init__(
        self, config: SimulationConfig, policy: RoutingPolicy, index: int, num_shards: int
    ) -> None:
        self._config = config
        self._library = Library(config.traffic, config.seed)
        self._needs_digests = policy.reads_digests
        self._routers = {
            router_id: SimulatedRouter(
                policy, config.seed + router_id, config.cell.block_size, self._library
            )
            for router_id in range(index, config.num_routers, num_shards)
        }
        self._cells = {
            cell_id: self._new_cell(cell_id)
            for cell_id in range(index, config.num_cells, num_shards)
        }
        # When each draining cell must be gone, in seconds.
        self._draining: dict[int, float] = {}
        self._usage_of_gone = Usage()

    def _new_cell(self, cell_id: int) -> SimulatedCell:
        return SimulatedCell(cell_id, self._config.cell, self._library)

    def place(self, start: IntervalStart) -> list[Placed]:
        """Let the routers take the reports and place new requests."""
        placed: list[Placed] = []
        for router_id, router in self._routers.items():
            news = start.news[router_id]
            router.take_reports(start.start_s, news.started, news.ended, start.heartbeats)
            for cell_id in start.left:
                router.leave(cell_id)
            for cell_id in start.joined:
                router.join(cell_id)
            placed += router.place(start.start_s, news)
        return placed

    def run(self, orders: IntervalOrders) -> IntervalResult:
        """Let the cells run through an interval."""
        started: list[int] = []
        answered: list[Answered] = []
        gone: list[int] = []
        returned: list[SimulatedSubmission] = []
        for cell_id in orders.started:
            self._cells[cell_id] = self._new_cell(cell_id)
        for cell_id in orders.killed:
            returned += self._remove(cell_id)
            gone.append(cell_id)
        for cell_id in orders.drained:
            self._draining[cell_id] = orders.drain_deadline_s
        for cell_id, submission in orders.placed:
            if cell_id in self._draining or cell_id not in self._cells:
                returned.append(submission)
            else:
                self._cells[cell_id].submit(submission)
        for cell in self._cells.values():
            cell.run_until(orders.end_s)
            events = cell.take_events()
            started += events.started
            answered += events.answered
        for cell_id, deadline_s in list(self._draining.items()):
            if orders.end_s >= deadline_s or not self._cells[cell_id].num_requests:
                returned += self._remove(cell_id)
                gone.append(cell_id)
                del self._draining[cell_id]
        usage = sum((cell.usage for cell in self._cells.values()), start=self._usage_of_gone)
        return IntervalResult(
            heartbeats=[
                cell.heartbeat(self._needs_digests)
                for cell_id, cell in self._cells.items()
                if cell_id not in self._draining
            ],
            events=CellEvents(started, answered, returned),
            gone=gone,
            usage=usage,
            num_requests=sum(cell.num_requests for cell in self._cells.values()),
        )

    def _remove(self, cell_id: int) -> list[SimulatedSubmission]:
        """Remove a cell; return its unfinished requests."""
        cell = self._cells.pop(cell_id)
        self._usage_of_gone += cell.usage
        return cell.unfinished()

    def check_idle(self) -> None:
        """Raise AssertionError unless every request has ended and every block is free."""
        # Counting all references of a thousand caches would take as long as simulating them.
        is_small = self._config.num_cells <= MAX_CELLS_COUNTED
        for cell in self._cells.values():
            cell.check_idle()
            if is_small:
                cell.scheduler.check_invariants()
        for router in self._routers.values():
            router.check_idle()
            if is_small:
                router.choice.check_invariants()
