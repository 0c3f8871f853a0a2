"""An upgrade to images that do not start, and the way back to those before."""

import time
from collections.abc import Iterator

import pytest

from tests.compose.load import Tokens, until_answering
from tests.compose.stack import HANGS_AFTER_S, IMAGE_TAG, SERVICES, Stack, docker, inspect

IMAGES = ("router", "scheduler", "worker")


@pytest.fixture
def broken() -> Iterator[str]:
    """The tag of images whose commands fail."""
    tag = f"{IMAGE_TAG}-broken"
    for name in IMAGES:
        container = docker("create", f"quire-{name}:{IMAGE_TAG}")
        docker("commit", "--change", 'ENTRYPOINT ["false"]', container, f"quire-{name}:{tag}")
        docker("rm", container)
    yield tag
    for name in IMAGES:
        docker("rmi", f"quire-{name}:{tag}")


async def test_the_version_before_comes_back(
    stack: Stack, broken: str, expected: list[Tokens]
) -> None:
    stack.change_images(broken)
    deadline = time.monotonic() + HANGS_AFTER_S
    while not all(inspect(stack.container(each))["RestartCount"] for each in SERVICES):
        assert time.monotonic() < deadline, stack.logs()
    stack.change_images(IMAGE_TAG)
    stack.wait_healthy()
    images = {
        inspect(stack.container(each))["Config"]["Image"].rpartition(":")[2] for each in SERVICES
    }
    assert images == {IMAGE_TAG}
    async with stack.client() as client:
        await until_answering(client, expected[0])
