"""One project of containers for all tests, which leave it as they found it: whole and answering."""

import asyncio
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from quire import AsyncClient
from tests.compose.load import Tokens, all_tokens
from tests.compose.stack import IMAGE_TAG, Stack, why_not
from tests.e2e.conftest import running_cluster

STACKS: list[Stack] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.compose)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, "pytest.CallInfo[None]", None]:
    """Show the logs of the containers with a failure."""
    report = (yield).get_result()
    if report.failed:
        for stack in STACKS:
            report.sections.append((f"containers of {stack.name}", stack.logs()))


@pytest.fixture(scope="session")
def expected() -> list[Tokens]:
    """The tokens of a cluster of plain processes, with as many workers."""

    async def run() -> list[Tokens]:
        async with (
            running_cluster(tensor_parallel_size=2) as cluster,
            AsyncClient(cluster.router.address) as client,
        ):
            return await all_tokens(client)

    return asyncio.run(run())


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The containers of deploy/compose.yaml, healthy."""
    if (reason := why_not(IMAGE_TAG)) is not None:
        pytest.skip(reason)
    stack = Stack(f"quire-test-{os.getpid()}", tmp_path_factory.mktemp("compose"))
    stack.make_credentials()
    STACKS.append(stack)
    try:
        try:
            stack.up()
        except BaseException:
            print(stack.logs())
            raise
        yield stack
    finally:
        STACKS.remove(stack)
        stack.down()
