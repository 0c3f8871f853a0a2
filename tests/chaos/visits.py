"""Requests that are given up in every state: queued, decoding, preempted, at their end."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from quire import AsyncClient, SamplingParams
from quire.contract.errors import DeadlineExceededError, OverloadedError, QuireError
from quire.contract.outputs import Delta, Event, Finished, Started

NUM_CLIENTS = 4
# So that 24 streams meet in every state: they wait for one of few places, chunks of prompts share
# small steps, and long ones need more blocks than there are, of which the host holds some.
SCHEDULER_OPTIONS = {
    "max_num_seqs": 12,
    "max_num_batched_tokens": 128,
    "num_gpu_blocks_override": 64,
    "preemption_mode": "swap",
}
_LONG_PROMPT = "The with statement is used to wrap the execution of a block " * 24


class Stage(IntEnum):
    """How far a request has come, as its client sees it."""

    SENT = 0
    QUEUED = 1
    DECODING = 2
    LAST = 3


class Ending(StrEnum):
    """Who ends a request."""

    ITSELF = "itself"
    CANCEL = "cancel"
    ABORT = "Abort"
    DEADLINE = "deadline"


def _params(max_tokens: int, **others: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **others)  # type: ignore[arg-type]


# Prompt, parameters, and how often of 20. Long ones are preempted.
SHAPES = {
    "short": ("The list class", _params(4), 12),
    "chunked": (_LONG_PROMPT, _params(4), 3),
    "long": ("A function definition", _params(240), 2),
    "n = 4": ("Return a copy of the string", _params(12, n=4), 1),
    "best_of": ("The list class", _params(8, n=1, best_of=3), 1),
    "beams": (
        "The list class",
        _params(8, n=2, best_of=4, use_beam_search=True, temperature=0.0),
        1,
    ),
}
# Seconds from a stage to the end of a request that is ended there, at most.
_LINGER_S = {Stage.SENT: 0.01, Stage.QUEUED: 0.1, Stage.DECODING: 0.5, Stage.LAST: 0.0}
_DEADLINES_S = (0.002, 0.4)


@dataclass(frozen=True, slots=True)
class Visit:
    """One request and its end.

    Attributes:
        request_id: of the request.
        shape: what it asks for.
        prompt_tail: makes its prompt another than those of most others.
        ending: who ends it.
        stage: at which it is cancelled or aborted.
        after_s: so long after it has come there; for a deadline, after it was sent.
    """

    request_id: str
    shape: str
    prompt_tail: str
    ending: Ending
    stage: Stage
    after_s: float


def visits(seed: int, number: int) -> Iterator[Visit]:
    """Yield so many requests, drawn from a seed."""
    draw = random.Random(seed)
    names, weights = tuple(SHAPES), [each[2] for each in SHAPES.values()]
    endings = (Ending.ITSELF, Ending.CANCEL, Ending.ABORT, Ending.DEADLINE)
    for place in range(number):
        ending, stage = draw.choices(endings, (3, 4, 2, 1))[0], draw.choice(tuple(Stage))
        is_late = ending is Ending.DEADLINE
        after_s = draw.uniform(*_DEADLINES_S) if is_late else draw.uniform(0.0, _LINGER_S[stage])
        shape = draw.choices(names, weights)[0]
        yield Visit(f"soak-{seed}-{place}", shape, f" {draw.randrange(64)}", ending, stage, after_s)


@dataclass(slots=True)
class Tally:
    """What became of requests.

    Attributes:
        ends: by shape, ending and the stage where that struck.
        unexpected: errors that no client should have got.
    """

    ends: Counter[tuple[str, Ending, Stage]] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what became of others."""
        self.ends.update(other.ends)
        self.unexpected += other.unexpected


class _Follower:
    """Reads the stream of a visit, and ends it as planned."""

    def __init__(self, client: AsyncClient, visit: Visit) -> None:
        self._client = client
        self._visit = visit
        prompt, self._params, _ = SHAPES[visit.shape]
        self._prompt = prompt + visit.prompt_tail
        self._num_tokens = 0
        self._is_there = asyncio.Event()
        self.stage = Stage.SENT

    async def run(self) -> Stage:
        """Return the stage at which it ended; errors are those of the client."""
        visit = self._visit
        reading = asyncio.create_task(self._read())
        if visit.ending in (Ending.CANCEL, Ending.ABORT):
            if visit.stage is not Stage.SENT:
                await self._is_there.wait()
            await asyncio.sleep(visit.after_s)
            if visit.ending is Ending.CANCEL:
                reading.cancel()
            else:
                await self._client.abort(visit.request_id)
        stage = self.stage
        await asyncio.wait((reading,))
        if visit.ending in (Ending.ITSELF, Ending.DEADLINE):
            stage = self.stage
        if not reading.cancelled():
            reading.result()
        return stage

    async def _read(self) -> None:
        visit = self._visit
        timeout = visit.after_s if visit.ending is Ending.DEADLINE else None
        try:
            async for event in self._client.stream(
                self._prompt, self._params, request_id=visit.request_id, timeout=timeout
            ):
                self._take(event)
        finally:
            self._is_there.set()

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self.stage = Stage.QUEUED
            case Delta():
                self._num_tokens += len(event.token_ids)
                is_last = self._num_tokens == self._params.n * (self._params.max_tokens or 0)
                self.stage = Stage.LAST if is_last else Stage.DECODING
            case Finished():
                self.stage = Stage.LAST
        if self.stage >= self._visit.stage:
            self._is_there.set()


async def send(targets: list[str], waiting: Iterator[Visit], num_streams: int) -> Tally:
    """Send all of these requests, so many at once, from several clients; return when all ended."""
    tally = Tally()

    async def work(client: AsyncClient) -> None:
        for visit in waiting:
            follower = _Follower(client, visit)
            try:
                stage = await follower.run()
            except (DeadlineExceededError, OverloadedError):
                stage = follower.stage
                if visit.ending is not Ending.DEADLINE:
                    tally.unexpected.append(f"{visit}: refused")
            except QuireError as error:
                stage = follower.stage
                tally.unexpected.append(f"{visit}: {type(error).__name__}: {error}")
            tally.ends[visit.shape, visit.ending, stage] += 1

    clients = [AsyncClient(targets) for _ in range(NUM_CLIENTS)]
    try:
        await asyncio.gather(*(work(clients[i % NUM_CLIENTS]) for i in range(num_streams)))
    finally:
        await asyncio.gather(*(each.close() for each in clients))
    return tally
