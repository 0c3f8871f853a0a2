"""Resuming a stream that broke: what was received, whether to go on, and when. No I/O."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.contract.chat import ChatInput, ResumeChatInput
from quire.contract.errors import (
    NoCellError,
    NumericsLostError,
    OverloadedError,
    ProtocolDiffersError,
    QuireError,
    ReaderStalledError,
    RequestExistsError,
    UnavailableError,
)
from quire.contract.inputs import GenerateInput, ReceivedOutput, ResumeInput
from quire.contract.outputs import Delta, Event, Finished, Started
from quire.contract.versions import UNVERSIONED, check_protocol

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 1.0


class ResumableStream:
    """One request over as many calls as it takes.

    Each call is `request`; its events go through `take`, and what ends it through `failed`.

    Args:
        request: as the user made it.
        num_targets: routers that may be called.
        resume_timeout_s: how long to try again after a break, without an event or a heartbeat.
        is_known: whether a router has answered this client before: then one will again, and a
            request of which nothing was received is tried as long; else it is sent to each once.
        timeout_s: for the whole answer; None for no limit.
        clock: in seconds, never set.

    Attributes:
        stub: of the router that was called last.
    """

    def __init__(
        self,
        request: GenerateInput | ChatInput,
        num_targets: int,
        resume_timeout_s: float,
        is_known: bool = False,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A chat is the request of its prompt once that is known.
        self._request: GenerateInput | ChatInput = request
        # Whose outputs are parsed: a router that goes on with it does not need its messages.
        self._parsed_chat: ChatInput | None = None
        if isinstance(request, ChatInput) and request.parse_output:
            self._parsed_chat = replace(request, messages=())
        self._num_untried = num_targets - 1
        self._resume_timeout_s = resume_timeout_s
        self._is_known = is_known
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._started: Started | None = None
        self._received: dict[int, ReceivedOutput] = {}
        self._token_ids: dict[int, list[int]] = {}
        self._num_prompt_logprobs = 0
        self._num_failures = 0
        # When it broke, and when a router was last known to work on it since then.
        self._broke_at = self._alive_at = 0.0
        self._was_lost = False
        self.stub: Any = None

    @property
    def request(self) -> GenerateInput | ChatInput | ResumeInput:
        """What to call a router with now."""
        started = self._started
        if started is None or isinstance(self._request, ChatInput):
            return self._request
        received = tuple(
            replace(output, token_ids=() if output.ended else tuple(self._token_ids[index]))
            for index, output in self._received.items()
        )
        ids = (started.seed, started.numerics_id, started.text_id)
        resumed = (self._request, *ids, received, self._num_prompt_logprobs)
        if self._parsed_chat is not None:
            return ResumeChatInput(*resumed, chat=self._parsed_chat)
        return ResumeInput(*resumed)

    @property
    def request_id(self) -> str:
        """As the router knows it, once it has started."""
        return self._request.request_id

    @property
    def needs_abort(self) -> bool:
        """Whether its router would let it run on if its call ended now."""
        return self._request.resumable and self._started is not None and not self.is_complete

    @property
    def remaining_s(self) -> float | None:
        """Seconds that are left for the answer; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    @property
    def is_complete(self) -> bool:
        """Whether the end of every output was received."""
        num_ended = sum(output.ended for output in self._received.values())
        return num_ended == self._request.sampling_params.n

    def take(self, event: Event) -> bool:
        """Record an event; return whether the user has yet to see it.

        Raises:
            ProtocolDiffersError: the router is of a release that this one does not understand.
        """
        if isinstance(event, Started):
            check_protocol(event.protocol_version, "the router")
            if self._parsed_chat is not None and event.protocol_version == UNVERSIONED:
                raise ProtocolDiffersError("parse_output: the router's release does not know it")
        self._num_failures = 0
        match event:
            case Started():
                if self._started is not None:
                    return False
                self._started, request = event, self._request
                if isinstance(request, ChatInput):
                    request = request.generate_input(
                        event.prompt_token_ids, event.structured_outputs
                    )
                params = request.sampling_params.filled(event.sampling_defaults)
                if event.max_tokens:
                    params = replace(params, max_tokens=event.max_tokens)
                self._request = replace(
                    request, request_id=event.request_id, sampling_params=params
                )
            case Delta():
                self._num_prompt_logprobs += len(event.prompt_logprobs)
                if event.text or event.token_ids:
                    self._take_delta(event)
            case Finished():
                output = self._received.get(event.index, ReceivedOutput(event.index))
                self._received[event.index] = replace(output, ended=True)
        return True

    def take_heartbeat(self) -> None:
        """Record that a router works on the request: it is not lost, however long that takes."""
        self._alive_at = self._clock()

    def _take_delta(self, delta: Delta) -> None:
        output = self._received.get(delta.index, ReceivedOutput(delta.index))
        total = output.cumulative_logprob
        for position in delta.logprobs:
            # In the order and precision of the router, so that the sum is the same to the bit.
            total = (total or 0.0) + position.logprobs[0]
        self._token_ids.setdefault(delta.index, []).extend(delta.token_ids)
        self._received[delta.index] = replace(
            output,
            num_text_bytes=output.num_text_bytes + len(delta.text.encode()),
            cumulative_logprob=total,
        )

    def check_complete(self) -> None:
        """Check that a call which ended without an error may have ended.

        Raises:
            UnavailableError: an output has not ended.
        """
        if not self.is_complete:
            raise UnavailableError("the router ended the stream early")

    def failed(self, error: QuireError) -> float:
        """Record what a call ended with.

        Returns:
            Seconds to wait before the next call, if the stream is not complete.

        Raises:
            QuireError: `error`, which ends the stream.
        """
        if self.is_complete:
            return 0.0
        # A router that has yet to find out that an earlier call was lost has its id in use.
        has_started = self._started is not None
        is_left = not has_started and self._was_lost and isinstance(error, RequestExistsError)
        # Another router may have been upgraded already, or not yet.
        differs = isinstance(error, ProtocolDiffersError)
        if not has_started:
            if type(error) is not UnavailableError and not is_left and not differs:
                raise error
            self._was_lost = True
            self._num_untried -= 1
            if self._num_untried >= 0:
                return 0.0
            if differs or not self._is_known:
                raise error
        passes = isinstance(error, OverloadedError | ReaderStalledError | UnavailableError)
        if not (passes or is_left or differs) or isinstance(error, NumericsLostError):
            raise error
        now = self._clock()
        if not self._num_failures:
            self._broke_at = self._alive_at = now
        # A router that waited for a cell in vain has used the time up, heartbeats or not.
        since = self._broke_at if isinstance(error, NoCellError) else self._alive_at
        delay_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._num_failures, 8))
        delay_s *= random.uniform(0.5, 1.0)  # so that not all streams of a router come at once
        self._num_failures += 1
        if isinstance(error, OverloadedError):
            delay_s = max(delay_s, error.retry_after_ms / 1e3)
        if now + delay_s - since > self._resume_timeout_s:
            raise error
        return delay_s
