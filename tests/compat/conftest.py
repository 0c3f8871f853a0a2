"""The cluster of all tests of a run."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from quire import AsyncClient
from tests.compat.cases import CALLS, CASES, VALUES
from tests.compat.site import ROOT, Site, chat, first_call, generate
from tests.e2e.conftest import running_cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with running_cluster(port=0) as cluster:
        async with AsyncClient(cluster.router.address) as client:
            (model,) = await client.list_models()
            texts = await asyncio.gather(*(generate(client, case) for case in CASES))
            chats = await asyncio.gather(*(chat(client, case) for case in CASES))
            calls = await asyncio.gather(*(chat(client, case) for case in CALLS))
            values = await asyncio.gather(*(chat(client, case) for case in VALUES))
        task = {
            "grpc": cluster.router.address,
            "http": f"http://{cluster.router.http_address}",
            "model": model.name,
            "protos": str(ROOT / "protos"),
            "buf": str(Path(sys.executable).with_name("buf")),
        }
        yield Site(
            task,
            list(texts),
            list(chats),
            [first_call(text) for text, _ in calls],
            [json.loads(text) for text, _ in values],
        )
