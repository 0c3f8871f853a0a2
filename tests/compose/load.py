"""Requests that go on while containers come and go, compared with an undisturbed run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuireError, UnavailableError
from quire.contract.outputs import Delta

# Long enough for something to happen in mid-stream.
NUM_TOKENS = 250
PROMPTS = (
    "The list class",
    "Return a copy of the",
    "A function definition",
    "class Foo:",
    "The with statement",
    "Return True if",
)
PARAMS = tuple(
    SamplingParams(temperature=t, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.7, 1.0, 1.3, 0.0, 0.9))
)
Tokens = tuple[int, ...]


async def collect(
    client: AsyncClient, index: int, some_arrived: asyncio.Event | None = None
) -> Tokens:
    """Return the tokens of a request; set the event when some have arrived or it failed."""
    tokens: list[int] = []
    try:
        async for event in client.stream(PROMPTS[index], PARAMS[index]):
            if isinstance(event, Delta):
                tokens += event.token_ids
                if some_arrived:
                    some_arrived.set()
    finally:
        if some_arrived:
            some_arrived.set()
    return tuple(tokens)


async def all_tokens(client: AsyncClient) -> list[Tokens]:
    """Return the tokens of every request, run at once."""
    return await asyncio.gather(*(collect(client, index) for index in range(len(PROMPTS))))


async def until_answering(client: AsyncClient, expected: Tokens, timeout_s: float = 60.0) -> None:
    """Ask until there is an answer, which must be the right one."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                assert await collect(client, 0) == expected
            except UnavailableError:
                await asyncio.sleep(0.2)
            else:
                return


@dataclass(slots=True)
class Load:
    """What came of requests that were sent again and again.

    Attributes:
        num_answers: that were complete and right.
        wrong: indexes of the requests whose tokens were not those of the undisturbed run.
        errors: what failed.
    """

    num_answers: int = 0
    wrong: list[int] = field(default_factory=list)
    errors: list[QuireError] = field(default_factory=list)

    async def until_answers(self, number: int, timeout_s: float = 90.0) -> None:
        """Return when so many more requests have been answered."""
        goal = self.num_answers + number
        async with asyncio.timeout(timeout_s):
            while self.num_answers < goal:
                await asyncio.sleep(0.05)

    def assert_undisturbed(self) -> None:
        assert (self.errors, self.wrong) == ([], [])


@asynccontextmanager
async def running_load(
    *clients: AsyncClient, expected: list[Tokens], streams: int = 3
) -> AsyncIterator[Load]:
    """Keep streams open all the time; on the way out, each is let finish."""
    load = Load()
    ending = asyncio.Event()

    async def keep_asking(number: int) -> None:
        turn = number
        while not ending.is_set():
            index = turn % len(PROMPTS)
            try:
                tokens = await collect(clients[turn % len(clients)], index)
            except QuireError as error:
                load.errors.append(error)
                await asyncio.sleep(0.2)
            else:
                if tokens == expected[index]:
                    load.num_answers += 1
                else:
                    load.wrong.append(index)
            turn += streams

    tasks = [asyncio.create_task(keep_asking(number)) for number in range(streams)]
    try:
        await load.until_answers(1)
        yield load
        ending.set()
        async with asyncio.timeout(90):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
