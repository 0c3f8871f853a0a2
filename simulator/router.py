"""A router in simulated time: the real policy, fed as a router feeds it."""

import random

from router.cells.choice import Assignment, CellChoice, RoutingPolicy
from simulator.messages import Heartbeat, Placed, RouterNews, SimulatedSubmission
from simulator.texts import FILLER_TOKEN, Library

_NO_SALT = b""


class SimulatedRouter:
    """Places requests on cells by what these have reported.

    Args:
        policy: how to choose.
        seed: of its random choices.
        block_size: of the cells' caches.
        library: of the texts that prompts are made of.
    """

    def __init__(self, policy: RoutingPolicy, seed: int, block_size: int, library: Library) -> None:
        self.choice = CellChoice[int](policy, random.Random(seed))
        self._block_size = block_size
        self._library = library
        self._assignments: dict[int, Assignment[int]] = {}
        # Submissions that may not have reached their cell, and those without any cell.
        self._on_their_way: list[SimulatedSubmission] = []
        self._unplaced: list[SimulatedSubmission] = []

    def join(self, cell_id: int) -> None:
        """Add a cell to choose from."""
        self.choice.join(cell_id, self._block_size)

    def leave(self, cell_id: int) -> None:
        """Remove a cell from those to choose from."""
        self.choice.leave(cell_id)

    def take_reports(
        self, now: float, started: list[int], ended: list[int], heartbeats: list[Heartbeat]
    ) -> None:
        """Take what happened until `now`.

        Args:
            now: beginning of the interval, in seconds.
            started: ids of requests that have their first token.
            ended: ids of requests that are answered or were taken from their cell.
            heartbeats: of the cells.
        """
        choice, assignments = self.choice, self._assignments
        on_their_way, self._on_their_way = self._on_their_way, []
        for submission in on_their_way:
            if submission.at_s <= now:
                choice.queued(assignments[submission.request.request_id])
            else:
                self._on_their_way.append(submission)
        for request_id in started:
            choice.computed(assignments[request_id])
        for request_id in ended:
            choice.ended(assignments.pop(request_id))
        for heartbeat in heartbeats:
            if heartbeat.added or heartbeat.removed:
                choice.update_digest(heartbeat.cell_id, heartbeat.added, heartbeat.removed)
            choice.report(heartbeat.cell_id, heartbeat.load)

    def place(self, now: float, news: RouterNews) -> list[Placed]:
        """Choose a cell for each new submission; without any cell, they wait.

        Args:
            now: beginning of the interval, for those that have waited.
            news: with the submissions.
        """
        placed: list[Placed] = []
        late = [each._replace(at_s=max(each.at_s, now)) for each in self._unplaced]
        self._unplaced = []
        for submission in late + news.submissions:
            tokens = self._library.prompt(submission.request)
            tokens += [FILLER_TOKEN] * submission.num_output_tokens
            assignment = self.choice.place(tokens, _NO_SALT)
            if assignment is None:
                self._unplaced.append(submission)
                continue
            self._assignments[submission.request.request_id] = assignment
            self._on_their_way.append(submission)
            placed.append(Placed(assignment.cell, submission))
        return placed

    def check_idle(self) -> None:
        """Raise AssertionError if a request is left."""
        assert not self._assignments and not self._unplaced, "requests are left"
