"""A client whose stream breaks, and that comes back for the rest the way the server offers."""

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from typing import Any

from launch.torture.answers import Answer, Received
from launch.torture.comparison import Outcome, Verdict, compare
from launch.torture.errors import AskError, BrokenError, RefusedError, TimedOutError
from launch.torture.questions import Question
from launch.torture.server import LATER, Server, within

# An error event, a gateway without its server, a request that runs still, "come again later".
_TRANSIENT = LATER | {0, 409, 500, 502, 504}
_PAUSES_S = (0.05, 0.1, 0.2, 0.5)


class Way(StrEnum):
    """How a stream went on."""

    RESUME = "resume"
    LAST_EVENT_ID = "Last-Event-ID"
    AGAIN = "asked again"


class Comeback:
    """A question that is asked until its answer has come to its end, however often that breaks.

    Args:
        server: to ask.
        question: to ask.
        rng: chooses among the ways that the server offers.
        on_event: is called after each event; a client that it raises BrokenError for disconnects.

    Attributes:
        received: so far.
        num_breaks: of the stream.
        ways: by which it went on, with the number of times that it did.
        longest_gap_s: between two events, from when `watch_gaps` was called.
    """

    def __init__(
        self,
        server: Server,
        question: Question,
        rng: random.Random,
        on_event: Callable[["Comeback"], None],
    ) -> None:
        self._server = server
        self.question = question
        self._rng = rng
        self._on_event = on_event
        self.received = Received()
        self.num_breaks = 0
        self.ways: Counter[Way] = Counter()
        self.longest_gap_s: float | None = None
        self._last_event_at = time.monotonic()
        self._request_id = ""
        self._given_up: list[Answer] = []

    def watch_gaps(self) -> None:
        """Measure gaps from now on, the one under way included."""
        self.longest_gap_s = self.longest_gap_s or 0.0

    async def ask(self, reference: Answer) -> Outcome:
        """Ask, come back until the answer has come to its end, and compare.

        Raises:
            AskError: it did not in time, or was refused.
        """
        await self._ask()
        return self._compare(reference)

    async def _ask(self) -> None:
        last_error: AskError | None = None
        try:
            async with within(self._server.timeout_s):
                while True:
                    try:
                        await self._read()
                        return
                    except RefusedError as error:
                        if error.status not in _TRANSIENT:
                            raise
                        last_error = error
                    except BrokenError as error:
                        last_error = error
                    if self.received.is_whole:
                        return
                    await asyncio.sleep(_PAUSES_S[min(self.num_breaks, len(_PAUSES_S) - 1)])
                    self.num_breaks += 1
        except TimedOutError as error:
            raise TimedOutError(f"{error}: {last_error}" if last_error else str(error)) from None

    async def _read(self) -> None:
        """Ask once, for the rest if there is a beginning, and read on."""
        way = self._way() if self.received.num_events else None
        fields, headers = self._request(way)
        asked = self._server.receive(self.question, self.received, fields=fields, headers=headers)
        async with aclosing(asked) as events:
            async for _ in events:
                if way is not None:
                    self.ways[way] += 1
                    way = None
                now = time.monotonic()
                if self.longest_gap_s is not None:
                    self.longest_gap_s = max(self.longest_gap_s, now - self._last_event_at)
                self._last_event_at = now
                self._on_event(self)

    def _request(self, way: Way | None) -> tuple[dict[str, Any], dict[str, str]]:
        """Return fields and headers of the next call; without a way it is the first."""
        fields: dict[str, Any] = {}
        received = self.received
        if self._server.extras.event_ids:
            # Whether the server goes on with what runs, or computes it again, is all the same.
            fields["resumable"] = self._rng.random() < 0.5
        if way in (None, Way.AGAIN):
            if way:
                self._given_up.append(received.answer())
                self.received = Received()
            self._request_id = uuid.UUID(int=self._rng.getrandbits(128), version=4).hex
            return fields, {"x-request-id": self._request_id}
        received.cut()
        if way is Way.LAST_EVENT_ID:
            headers = {"x-request-id": self._request_id, "last-event-id": received.event_id}
            return fields, headers
        fields["resume"] = {
            "id": received.answer_id,
            "seed": received.seed,
            "starting_after": received.event_id,
            "system_fingerprint": received.fingerprint or "",
        }
        return fields, {}

    def _way(self) -> Way:
        """Choose how to go on, by what the events carry."""
        received = self.received
        if not received.event_id:
            return Way.AGAIN
        # Numbers of events are Last-Event-ID's alone unless there is what `resume` wants with them.
        has_seed = received.seed is not None and received.answer_id
        return self._rng.choice((Way.RESUME, Way.LAST_EVENT_ID)) if has_seed else Way.LAST_EVENT_ID

    def _compare(self, reference: Answer) -> Outcome:
        """Compare what has come, in one piece or in several, with the reference."""
        name = self.question.name
        outcome = compare(name, reference, self.received.answer(), self.received.cuts)
        if outcome.verdict is not Verdict.EQUAL:
            return outcome
        for beginning in self._given_up:
            # What a client had shown already is not what it would show now.
            cut = Answer(
                reference.text[: len(beginning.text)],
                reference.tokens[: len(beginning.tokens)],
                reference.logprobs[: len(beginning.logprobs)],
                beginning.finish_reason,
            )
            before = compare(name, cut, beginning)
            if before.verdict is not Verdict.EQUAL:
                return replace(before, detail=f"before it broke, {before.detail}")
        return outcome


def ways_text(streams: Iterable[Comeback]) -> str:
    """Return by which ways streams went on, and how often; "" if none did."""
    ways: Counter[Way] = Counter()
    for stream in streams:
        ways += stream.ways
    return ", ".join(f"{way} {number}" for way, number in sorted(ways.items()))
