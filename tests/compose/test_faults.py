"""Each container crashes, is killed, is frozen in mid-stream: the right tokens or a clean error.

A crash is a SIGKILL of the container's first process from outside, which the engine takes for what
it is and starts the container again. `docker kill` it takes for an operator's wish, as it does
`docker stop`: such a container stays away until an operator starts it.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from quire.contract.errors import UnavailableError
from tests.compose.load import PROMPTS, Tokens, collect, until_answering
from tests.compose.stack import SERVICES, Stack, docker, inspect

# A peer that sends nothing is given up after 15 s.
FROZEN_S = 17.0
# Of an answer that was interrupted: the pause, a worker's start, and prefills of all that ran.
ANSWER_TIMEOUT_S = 90.0


def crash(container: str) -> None:
    os.kill(inspect(container)["State"]["Pid"], signal.SIGKILL)


def kill(container: str) -> None:
    docker("kill", container)
    state = inspect(container)["State"]
    assert not state["Running"]
    docker("start", container)


def freeze(container: str) -> None:
    docker("pause", container)
    try:
        time.sleep(FROZEN_S)
    finally:
        docker("unpause", container)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [crash, kill, freeze])
async def test_a_fault_ends_in_the_right_tokens_or_a_clean_error(
    stack: Stack, expected: list[Tokens], fault: Callable[[str], None], service: str
) -> None:
    container = stack.container(service)
    pid = inspect(container)["State"]["Pid"]
    async with stack.client() as client:
        arrived = [asyncio.Event() for _ in PROMPTS]
        streams = [asyncio.create_task(collect(client, i, arrived[i])) for i in range(len(PROMPTS))]
        await asyncio.gather(*(event.wait() for event in arrived))
        assert not any(stream.done() for stream in streams), "nothing runs that could be disturbed"
        await asyncio.to_thread(fault, container)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            outcomes = await asyncio.gather(*streams, return_exceptions=True)
        for outcome, tokens in zip(outcomes, expected, strict=True):
            # Streams end at the router: with it alone they are lost.
            if service == "router" and isinstance(outcome, BaseException):
                assert isinstance(outcome, UnavailableError), outcome
            else:
                assert outcome == tokens
        await until_answering(client, expected[0])
    await asyncio.to_thread(stack.wait_healthy)
    state = inspect(container)["State"]
    assert (state["Pid"] != pid) == (fault is not freeze), "the fault did not happen"
