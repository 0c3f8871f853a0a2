"""What a client and an operator see of the containers while nothing goes wrong."""

from tests.compose.load import Tokens, all_tokens
from tests.compose.stack import Stack


async def test_the_tokens_are_those_of_plain_processes(
    stack: Stack, expected: list[Tokens]
) -> None:
    async with stack.client() as client:
        assert await all_tokens(client) == expected
