"""Responses whose client may come back: what of them has been sent."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quire.contract.inputs import ReceivedOutput, ResumeInput
from router.http.chat.choices import Part
from router.http.responses.events import ResponseState
from router.http.responses.request import ResponseRequest

# Of all that are held, and of the tokens of all: the one that was asked for first makes room.
MAX_HELD = 1024
MAX_HELD_TOKENS = 2**20


@dataclass(slots=True)
class HeldResponse:
    """A response, and the parts of it that were sent.

    Attributes:
        request: that it answers.
        caller_name: of the API key that it came with.
        state: of the stream that began last.
        parts: of its tokens.
        logprobs: of each, where they were asked for.
    """

    request: ResponseRequest
    caller_name: str
    state: ResponseState
    parts: list[Part] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, parts: Sequence[Part]) -> None:
        """Note parts that are about to be sent."""
        for part in parts:
            if part.token_ids:
                self.parts.append(part)
                if part.logprobs is not None:
                    self.logprobs.append(part.logprobs["logprob"])

    def resumed(self, num_tokens: int) -> ResumeInput:
        """Return the request for what follows the first tokens."""
        started, chat = self.state.started, self.request.chat
        assert started is not None, "it is held from its start on"
        params = replace(chat.sampling_params, max_tokens=started.max_tokens)
        request = replace(
            chat.generate_input(started.prompt_token_ids),
            sampling_params=params,
            request_id=started.request_id,
        )
        parts = self.parts[:num_tokens]
        total = None
        for logprob in self.logprobs[:num_tokens]:
            total = (total or 0.0) + logprob
        received = ReceivedOutput(
            0,
            tuple(token_id for part in parts for token_id in part.token_ids),
            sum(len(part.text.encode()) for part in parts),
            cumulative_logprob=total,
        )
        ids = started.numerics_id, started.text_id
        return ResumeInput(request, started.seed, *ids, (received,) if parts else ())


class HeldResponses:
    """Finds responses by their ids, for a while.

    Args:
        hold_s: how long after a stream ended, in seconds.
    """

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._held: OrderedDict[str, HeldResponse] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._num_tokens = 0

    def put(self, response: HeldResponse) -> None:
        """Hold a response, in the place of an earlier stream of it."""
        request_id = response.state.request_id
        self._drop(request_id)
        self._held[request_id] = response
        self._num_tokens += len(response.parts)
        self._make_room()

    def add(self, response: HeldResponse, parts: Sequence[Part]) -> None:
        """Note parts of a response that are about to be sent, if it is held."""
        if self._held.get(response.state.request_id) is response:
            num_before = len(response.parts)
            response.add(parts)
            self._num_tokens += len(response.parts) - num_before
            self._make_room()

    def _make_room(self) -> None:
        while len(self._held) > MAX_HELD or self._num_tokens > MAX_HELD_TOKENS:
            self._drop(next(iter(self._held)))

    def find(self, request_id: str, caller_name: str) -> HeldResponse | None:
        """Return a response of this caller; None if it is not held."""
        found = self._held.get(request_id)
        return found if found is not None and found.caller_name == caller_name else None

    def left(self, response: HeldResponse) -> None:
        """Its stream has ended, and no other has taken it over: forget it in time."""
        request_id = response.state.request_id
        if self._held.get(request_id) is response:
            self._cancel_timer(request_id)
            loop = asyncio.get_running_loop()
            self._timers[request_id] = loop.call_later(self._hold_s, self._drop, request_id)

    def find_same(self, request: ResponseRequest, caller_name: str) -> HeldResponse | None:
        """Return the response of a request that was sent again, to go on with it."""
        found, chat = self.find(request.chat.request_id, caller_name), request.chat
        if found is None:
            return None
        params = replace(found.request.chat.sampling_params, seed=chat.sampling_params.seed)
        return found if replace(found.request.chat, sampling_params=params) == chat else None

    def _drop(self, request_id: str) -> None:
        self._cancel_timer(request_id)
        if (response := self._held.pop(request_id, None)) is not None:
            self._num_tokens -= len(response.parts)

    def _cancel_timer(self, request_id: str) -> None:
        if (timer := self._timers.pop(request_id, None)) is not None:
            timer.cancel()
