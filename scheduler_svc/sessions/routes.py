"""Which session each group belongs to, and until when; sends the sessions what steps bring."""

from heapq import heapify, heappop, heappush

from quire.contract.sessions import StepOutputs
from scheduler_svc.policy.progress import Progress
from scheduler_svc.sessions.session import RouterSession

# Deadlines of ended groups that are too few to look for.
MANY = 64


class Routes:
    """The session and the request number of every unfinished group."""

    def __init__(self) -> None:
        self._routes: dict[int, tuple[RouterSession, int]] = {}
        # (deadline in seconds, group); those of groups that have ended are dropped in time.
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._routes)

    def add(
        self,
        group_id: int,
        session: RouterSession,
        request_number: int,
        deadline_s: float | None = None,
    ) -> None:
        """Route what concerns a group to the session of its request."""
        session.groups[request_number] = group_id
        self._routes[group_id] = session, request_number
        if deadline_s is not None:
            heappush(self._deadlines, (deadline_s, group_id))
            if len(self._deadlines) > 2 * len(self._routes) + MANY:
                self._deadlines = [each for each in self._deadlines if each[1] in self._routes]
                heapify(self._deadlines)

    def take_expired(self, now: float) -> list[tuple[int, RouterSession, int]]:
        """Return group, session and request number of those whose deadline has passed."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, group_id = heappop(self._deadlines)
            if route := self._routes.get(group_id):
                expired.append((group_id, *route))
        return expired

    def find(self, group_id: int) -> tuple[RouterSession, int]:
        """Return session and request number of an unfinished group."""
        return self._routes[group_id]

    def remove(self, group_id: int) -> None:
        """Forget a group: its session is sent nothing more about it."""
        session, request_number = self._routes.pop(group_id)
        del session.groups[request_number]

    def send(self, progress: Progress) -> None:
        """Send each session what concerns it, in one message; forget the groups that ended.

        Groups that have no route were cancelled since the step.
        """
        steps: dict[RouterSession, StepOutputs] = {}

        def step_of(group_id: int) -> tuple[int, StepOutputs] | None:
            route = self._routes.get(group_id)
            if route is None:
                return None
            session, number = route
            step = steps.get(session)
            if step is None:
                step = steps[session] = StepOutputs()
            return number, step

        tokens = zip(progress.group_ids, progress.sequence_indices, progress.token_ids, strict=True)
        for place, (group_id, sequence_index, token_id) in enumerate(tokens):
            if found := step_of(group_id):
                number, step = found
                step.request_numbers.append(number)
                step.sequence_indices.append(sequence_index)
                step.token_ids.append(token_id)
                if progress.logprobs:
                    step.logprobs.append(progress.logprobs[place])
        for group_id, num_tokens in progress.cached_tokens:
            if found := step_of(group_id):
                number, step = found
                step.cached_tokens.append((number, num_tokens))
        for group_id, prompt_logprobs in progress.prompt_logprobs:
            if found := step_of(group_id):
                number, step = found
                step.prompt_logprobs.append((number, prompt_logprobs))
        for group_id, vector in progress.vectors:
            if found := step_of(group_id):
                number, step = found
                step.vectors.append((number, vector))
        for finished in progress.finished:
            if found := step_of(finished.group_id):
                number, step = found
                step.add_finished(number, finished.sequence_index, finished.finish_reason)
        for group_id, hypotheses in progress.hypotheses:
            if found := step_of(group_id):
                number, step = found
                step.hypotheses.append((number, hypotheses))
        for group_id, breakdown in progress.time_breakdowns.items():
            if found := step_of(group_id):
                number, step = found
                step.time_breakdowns.append((number, breakdown))
        for group_id in progress.ended_group_ids:
            if group_id in self._routes:
                self.remove(group_id)
        for session, step in steps.items():
            session.push(step)
