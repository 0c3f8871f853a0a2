"""A router's session: its requests by the router's numbers, and what is still to be told."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from quire.contract.errors import DrainingError, InvalidRequestError, OverloadedError, QuireError
from quire.contract.outputs import CellState, FinishReason, Hypothesis, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.time_account import TimeAccount
from scheduler_svc.blocks.prefix_digest import DigestDelta
from scheduler_svc.policy.step import PromptLogprobs

RECONNECT_AFTER_MS = 1000


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as a router submits it.

    Attributes:
        request_number: the router's name for it.
        request_id: for logs only.
        prompt_token_ids: not checked yet.
        outputs: tokens that its sequences have produced under an earlier session, by index; those
            that have ended are left out. None for a request that has not run yet.
        sampling_params: with a seed if there are outputs.
        priority: smaller goes first.
        cache_salt: cached prefixes are shared within a salt only.
        traceparent: W3C Trace Context; "" if the router told none.
        wants_time_account: tell the router with every token where the time has gone.
    """

    request_number: int
    request_id: str
    prompt_token_ids: list[int]
    outputs: dict[int, list[int]] | None
    sampling_params: SamplingParams
    priority: int = 0
    cache_salt: bytes = b""
    traceparent: str = ""
    wants_time_account: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request is queued, or was complete already."""

    request_number: int
    seed: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request is not taken: now (OverloadedError), ever (InvalidRequestError), or any more."""

    request_number: int
    error: OverloadedError | InvalidRequestError | DrainingError


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What a step brought to the requests of one session.

    Attributes:
        request_numbers: requests whose sequences got a token; parallel to the next two.
        sequence_indices: of those sequences.
        token_ids: the tokens.
        finished_request_numbers: requests whose sequences ended; parallel to the next two.
        finished_sequence_indices: of those sequences.
        finish_reasons: why.
        logprobs: parallel to `token_ids` if any of the requests asked for them, else empty.
        hypotheses: (request number, texts) of the beam searches that ended, best first.
        prompt_logprobs: (request number, what was computed of its prompt).
        time_accounts: (request number, its time so far) of those who want to know.
    """

    request_numbers: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished_request_numbers: list[int] = field(default_factory=list)
    finished_sequence_indices: list[int] = field(default_factory=list)
    finish_reasons: list[FinishReason] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    hypotheses: list[tuple[int, list[Hypothesis]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, PromptLogprobs]] = field(default_factory=list)
    time_accounts: list[tuple[int, TimeAccount]] = field(default_factory=list)

    def add_finished(self, number: int, sequence_index: int, reason: FinishReason) -> None:
        """A sequence of a request ended."""
        self.finished_request_numbers.append(number)
        self.finished_sequence_indices.append(sequence_index)
        self.finish_reasons.append(reason)


SessionEvent = Admitted | Refused | StepOutputs | CellState | DigestDelta


class RouterSession:
    """The scheduler's side of a session.

    Args:
        max_unsent_events: bound of what is queued for a router that does not read.

    Attributes:
        groups: group ids of the session's unfinished requests, by request number.
        ended: set when the session ends.
        error: why it ended, unless the router left of its own accord.
    """

    def __init__(self, max_unsent_events: int) -> None:
        self.groups: dict[int, int] = {}
        self.ended = asyncio.Event()
        self.error: QuireError | None = None
        self._max_unsent_events = max_unsent_events
        self._unsent: deque[SessionEvent] = deque()
        self._changed = asyncio.Event()

    def push(self, event: SessionEvent) -> None:
        """Queue an event; a router that has left too many unread loses its session instead."""
        if self.ended.is_set():
            return
        if len(self._unsent) >= self._max_unsent_events:
            self._unsent.clear()
            self.end(
                OverloadedError(
                    f"session ended: the router left {self._max_unsent_events} messages unread",
                    RECONNECT_AFTER_MS,
                )
            )
            return
        self._unsent.append(event)
        self._changed.set()

    @property
    def is_told(self) -> bool:
        """Whether everything that was pushed is on its way."""
        return not self._unsent

    def end(self, error: QuireError | None = None) -> None:
        """End the session; the first call counts."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()
            self._changed.set()

    async def events(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield what was pushed, in order, until the session ends."""
        while not self.ended.is_set():
            while self._unsent:
                yield self._unsent.popleft()
            self._changed.clear()
            if not self.ended.is_set():
                await self._changed.wait()
