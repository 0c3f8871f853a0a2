"""What a client sees of the containers while nothing goes wrong."""

import pytest

from quire import AsyncClient, SamplingParams
from quire.contract.errors import UnauthenticatedError, UnavailableError
from tests.compose.load import Tokens, all_tokens
from tests.compose.stack import Stack

SHORT = SamplingParams(max_tokens=4)


async def test_the_tokens_are_those_of_plain_processes(
    stack: Stack, expected: list[Tokens]
) -> None:
    async with stack.client() as client:
        assert await all_tokens(client) == expected


async def test_a_key_that_the_router_does_not_know_is_refused(stack: Stack) -> None:
    async with stack.client(api_key="quire-" + "A" * 43) as client:
        with pytest.raises(UnauthenticatedError):
            await client.generate("The list class", SHORT)


async def test_a_client_without_a_certificate_gets_no_connection(stack: Stack) -> None:
    async with AsyncClient(f"127.0.0.1:{stack.port}") as client:
        with pytest.raises(UnavailableError):
            await client.generate("The list class", SHORT)
