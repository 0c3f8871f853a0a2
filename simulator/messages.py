"""What routers and cells tell each other; tuples, since most of it goes between processes."""

from typing import NamedTuple

from router.cells.choice import ReportedLoad
from simulator.texts import Request


class Submission(NamedTuple):
    """A request on its way to a cell.

    Attributes:
        request: what is asked.
        at_s: when it reaches the cell.
        num_output_tokens: that other cells have computed before.
        first_token_s: when the client had the first of them; None before any.
        num_moves: cells that it was taken from.
    """

    request: Request
    at_s: float
    num_output_tokens: int = 0
    first_token_s: float | None = None
    num_moves: int = 0


class Placed(NamedTuple):
    """A router's choice.

    Attributes:
        cell_id: where it goes.
        submission: what.
    """

    cell_id: int
    submission: Submission


class Answered(NamedTuple):
    """An answer that is complete.

    Attributes:
        submission: as it came to the cell that completed it.
        first_token_s: when the client had the first token.
        end_s: when the client had the last.
    """

    submission: Submission
    first_token_s: float
    end_s: float


class Usage(NamedTuple):
    """What a cell has done so far.

    Attributes:
        num_tokens_looked_up: in its prefix cache.
        num_tokens_found: there.
        num_preemptions: of groups.
        num_recomputed_tokens: because of them.
        num_steps: of its workers.
        num_tokens: sampled.
        busy_s: of its workers.
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
    """What a cell tells every router after each interval.

    Attributes:
        cell_id: that says so.
        load: what it has to do.
        num_requests: running and waiting.
        added: short hashes of blocks that can be found since the last heartbeat; none where the
            policy asks for none.
        removed: of those that cannot any more.
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
        answered: complete ones.
        returned: that the cell will not finish; they need another.
    """

    started: list[int]
    answered: list[Answered]
    returned: list[Submission]


class RouterNews(NamedTuple):
    """What a router hears at the beginning of an interval.

    Attributes:
        started: ids of its requests that have their first token.
        ended: ids of its requests that are answered or were taken from their cell.
        submissions: that it is to place, in order of their time.
    """

    started: list[int]
    ended: list[int]
    submissions: list[Submission]


class IntervalStart(NamedTuple):
    """What the routers of a process hear at the beginning of an interval.

    Attributes:
        start_s: of the interval.
        joined: cells that can be chosen from now on.
        left: cells that cannot any more; they leave before others join.
        heartbeats: of all cells, from the end of the interval before.
        news: by router.
    """

    start_s: float
    joined: list[int]
    left: list[int]
    heartbeats: list[Heartbeat]
    news: dict[int, RouterNews]


class IntervalOrders(NamedTuple):
    """What the cells of a process are told for an interval.

    Attributes:
        end_s: of the interval.
        placed: requests for them, in order of their time.
        killed: cells that go at once.
        drained: cells that take nothing new from now on.
        started: cells that begin, empty.
        drain_deadline_s: until when those of `drained` may finish what they run.
    """

    end_s: float
    placed: list[Placed]
    killed: list[int]
    drained: list[int]
    started: list[int]
    drain_deadline_s: float


class IntervalResult(NamedTuple):
    """What came of an interval in the cells of a process.

    Attributes:
        heartbeats: of the cells that can be chosen.
        events: of all of them.
        gone: cells that are no more.
        usage: of all there have been, summed.
        num_requests: running and waiting, over all.
    """

    heartbeats: list[Heartbeat]
    events: CellEvents
    gone: list[int]
    usage: Usage
    num_requests: int
