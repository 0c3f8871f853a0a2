"""The pods of a LeaderWorkerSet's group: the leader is the scheduler, ranks count from the next."""

from collections.abc import Iterator

import pytest

from tests.compose.load import Tokens, all_tokens
from tests.manifests.conftest import Deployment, deployed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("group"), "lws") as deployment:
        yield deployment


async def test_a_group_is_a_cell_and_answers_as_one(
    cluster: Deployment, expected: list[Tokens]
) -> None:
    assert set(cluster.kubelet.pods) == {
        "quire-router-0",
        "quire-cell-0",
        "quire-cell-0-1",
        "quire-cell-0-2",
    }
    async with cluster.client() as client:
        assert await all_tokens(client) == expected
