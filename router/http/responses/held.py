"""Responses whose client may come back: what they answer, for as long as their request is held."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace

from quire.contract.inputs import ReplayInput
from router.http.responses.events import ResponseState
from router.http.responses.request import ResponseRequest

# The one that was asked for first makes room.
MAX_HELD = 1024


@dataclass(frozen=True, slots=True)
class HeldResponse:
    """A response that has started.

    Attributes:
        request: that it answers.
        caller_name: of the API key that it came with.
        state: of the stream that began last.
    """

    request: ResponseRequest
    caller_name: str
    state: ResponseState

    def replay(self) -> ReplayInput:
        """Return what finds the request running, or computes it again."""
        started = self.state.started
        assert started is not None, "it is held from its start on"
        request = self.request.chat.generate_input(
            started.prompt_token_ids, started.structured_outputs
        )
        request = replace(request, request_id=started.request_id)
        return ReplayInput(
            *(request, started.seed, started.numerics_id, started.text_id),
            sampling_defaults=started.sampling_defaults,
        )


class HeldResponses:
    """Finds responses by their ids, for a while.

    Args:
        hold_s: how long after a stream ended, in seconds.
    """

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._held: OrderedDict[str, HeldResponse] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def put(self, response: HeldResponse) -> None:
        """Hold a response, in the place of an earlier stream of it."""
        request_id = response.state.request_id
        self.drop(request_id)
        self._held[request_id] = response
        while len(self._held) > MAX_HELD:
            self.drop(next(iter(self._held)))

    def find(self, request_id: str, caller_name: str) -> HeldResponse | None:
        """Return a response of this caller; None if it is not held."""
        found = self._held.get(request_id)
        return found if found is not None and found.caller_name == caller_name else None

    def left(self, response: HeldResponse) -> None:
        """Its stream has ended, and no other has taken it over: forget it in time."""
        request_id = response.state.request_id
        if self._held.get(request_id) is response:
            loop = asyncio.get_running_loop()
            self._timers[request_id] = loop.call_later(self._hold_s, self.drop, request_id)

    def drop(self, request_id: str) -> None:
        """Forget a response, if it is held."""
        self._held.pop(request_id, None)
        if (timer := self._timers.pop(request_id, None)) is not None:
            timer.cancel()
