"""A router in simulated time: the real policy, and what a router tells it."""

import random

from router.cells.choice import Assignment, CellChoice, RoutingPolicy
from simulator.messages import Heartbeat, Placed, RouterNews, Submission
from simulator.texts import FILLER_TOKEN, Library

_NO_SALT = b""


class SimulatedRouter:
    """Places requests on cells by what these have reported.

    Args:
        policy: how to choose.
        seed: of its chance.
        block_size: of the cells' caches.
        library: of the texts that prompts are made of.
    """

    def __init__(self, policy: RoutingPolicy, seed: int, block_size: int, library: Library) -> None:
        self.choice = CellChoice[int](policy, random.Random(seed))
        self._block_size = block_size
        self._library = library
        self._assignments: dict[int, Assignment[int]] = {}
        # Submissions that may not have reached their cell, and those for which there is none.
        self._on_their_way: list[Submission] = []
        self._unplaced: list[Submission] = []

    def join(self, cell_id: int) -> None:
        """Choose a cell too from now on."""
        self.choice.join(cell_id, self._block_size)

    def leave(self, cell_id: int) -> None:
        """Do not choose a cell any more."""
        self.choice.leave(cell_id)

    def hear(self, now: float, started: list[int], ended: list[int], told: list[Heartbeat]) -> None:
        """Take what happened until `now`."""
        choice, assignments = self.choice, self._assignments
        on_their_way, self._on_their_way = self._on_their_way, []
        for submission in on_their_way:
            if submission.at_s <= now:
                choice.admitted(assignments[submission.request.request_id])
            else:
                self._on_their_way.append(submission)
        for request_id in started:
            choice.computed(assignments[request_id])
        for request_id in ended:
            choice.ended(assignments.pop(request_id))
        for heartbeat in told:
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
        """Raise AssertionError unless it has no request left."""
        assert not self._assignments and not self._unplaced, "requests are left"
