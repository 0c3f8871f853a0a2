"""Messages between routers and cells; tuples, since most of them go between processes."""

from typing import NamedTuple

from router.cells.choice import ReportedLoad
from simulator.texts import SimulatedRequest


class SimulatedSubmission(NamedTuple):
    """A request on its way to a cell.

    Attributes:
        request: of the client.
        at_s: when it reaches the cell.
        num_output_tokens: tokens that other cells have computed before.
        first_token_s: when the client had the first of them; None before any.
        num_moves: how often it was taken from a cell.
    """

    request: SimulatedRequest
    at_s: float
    num_output_tokens: int = 0
    first_token_s: float | None = None
    num_moves: int = 0


class Placed(NamedTuple):
    """A router's choice of a cell.

    Attributes:
        cell_id: the chosen cell.
        submission: to be sent there.
    """

    cell_id: int
    submission: SimulatedSubmission


class Answered(NamedTuple):
    """An answer that is complete.

    Attributes:
        submission: as the cell that completed it received it.
        first_token_s: when the client had the first token.
        end_s: when the client had the last.
    """

    submission: SimulatedSubmission
    first_token_s: float
    end_s: float


class Usage(NamedTuple):
    """What a cell has done so far.

    Attributes:
        num_tokens_looked_up: prompt tokens looked up in its prefix cache.
        num_tokens_found: those of them that were there.
        num_preemptions: groups preempted.
        num_recomputed_tokens: tokens computed again after that.
        num_steps: steps run.
        num_tokens: tokens sampled.
        busy_s: time that its workers computed.
    """

    num_tokens_looked_up: int = 0
    num_tokens_found: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    busy_s: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":  # type: ignore[override]
        """Return the sum of both, field by field."""
        return Usage._make(mine + others for mine, others in zip(self, other, strict=True))


class Heartbeat(NamedTuple):
    """What a cell reports to every router after each interval.

    Attributes:
        cell_id: of the cell.
        load: how much work it has.
        num_requests: requests that run, wait, or are on their way there.
        added: short hashes of blocks that can be found since the last heartbeat; none if the
            policy does not need them.
        removed: of blocks that cannot be found any more.
    """

    cell_id: int
    load: ReportedLoad
    num_requests: int
    added: tuple[int, ...]
    removed: tuple[int, ...]


class CellEvents(NamedTuple):
    """What happened to requests at a cell in an interval.

    Attributes:
        started: ids of requests that have their first token.
        answered: complete answers.
        returned: requests that the cell will not finish; they need another cell.
    """

    started: list[int]
    answered: list[Answered]
    returned: list[SimulatedSubmission]


class RouterNews(NamedTuple):
    """What one router gets at the beginning of an interval.

    Attributes:
        started: ids of its requests that have their first token.
        ended: ids of its requests that are answered or were taken from their cell.
        submissions: requests to place, in order of their time.
    """

    started: list[int]
    ended: list[int]
    submissions: list[SimulatedSubmission]


class IntervalStart(NamedTuple):
    """What the routers of a process get at the beginning of an interval.

    Attributes:
        start_s: of the interval.
        joined: cells that can be chosen from now on.
        left: cells that cannot be chosen any more; they leave before others join.
        heartbeats: of all cells, from the end of the interval before.
        news: by router.
    """

    start_s: float
    joined: list[int]
    left: list[int]
    heartbeats: list[Heartbeat]
    news: dict[int, RouterNews]


class IntervalOrders(NamedTuple):
    """What the cells of a process get for an interval.

    Attributes:
        end_s: of the interval.
        placed: requests for the cells, in order of their time.
        killed: cells that go at once.
        drained: cells that refuse new requests from now on.
        started: cells that begin, empty.
        drain_deadline_s: until when the drained cells may finish what they run.
    """

    end_s: float
    placed: list[Placed]
    killed: list[int]
    drained: list[int]
    started: list[int]
    drain_deadline_s: float


class IntervalResult(NamedTuple):
    """What happened in an interval in the cells of a process.

    Attributes:
        heartbeats: of the cells that can be chosen.
        events: of all cells.
        gone: cells that have ended.
        usage: sum over all cells, those that are gone included.
        num_requests: sum over all cells.
    """

    heartbeats: list[Heartbeat]
    events: CellEvents
    gone: list[int]
    usage: Usage
    num_requests: int
