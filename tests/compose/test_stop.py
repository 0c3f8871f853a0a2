"""An orderly end: every process ends by itself, with status 0, well within its grace."""

from tests.compose.load import Tokens, until_answering
from tests.compose.stack import SERVICES, Stack, inspect


async def test_a_stopped_project_ends_cleanly_and_starts_again(
    stack: Stack, expected: list[Tokens]
) -> None:
    stack.compose("stop")
    states = {service: inspect(stack.container(service))["State"] for service in SERVICES}
    assert {service: state["ExitCode"] for service, state in states.items()} == dict.fromkeys(
        SERVICES, 0
    )
    # In the order of compose.yaml: who sends requests ends before who answers them.
    ends = [states[service]["FinishedAt"] for service in ("router", "scheduler", "worker-0")]
    assert ends == sorted(ends)
    stack.compose("start")
    stack.wait_healthy()
    async with stack.client() as client:
        await until_answering(client, expected[0])
