"""What several files of these tests start: a router with API keys, a worker.

Workers are imported when first used: they import torch, which tests of other services do without.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from quire.security.api_key_file import ApiKey, digest, editing
from quire.security.api_keys import utc_now
from quire.v1 import worker_pb2_grpc
from tests.rpc.router_setup import Setup, running_router


@dataclass
class Keyed(Setup):
    """A router that wants keys; "alice" is the key of alice, "old" is expired."""

    file: Path

    def revoke(self, name: str) -> None:
        with editing(self.file) as keys:
            keys[:] = [key for key in keys if key.name != name]


@pytest.fixture
async def keyed(tmp_path) -> AsyncIterator[Keyed]:
    file = tmp_path / "keys.jsonl"
    now = utc_now()
    with editing(file) as keys:
        keys += [
            ApiKey("alice", digest("alice"), now),
            ApiKey("bob", digest("bob"), now, now + timedelta(hours=1)),
            ApiKey("dave", digest("dave"), now, weight=2.5, min_priority=-1),
            ApiKey("old", digest("old"), now, now - timedelta(seconds=1)),
        ]
    async with running_router(tmp_path, api_keys=file) as setup:
        yield Keyed(**vars(setup), file=file)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in which the embedding of the token POISON is not a number."""
    import torch

    from tests.factories import llama_config, random_model
    from tests.rpc.worker_client import POISON

    directory = tmp_path_factory.mktemp("llama")
    model = random_model(llama_config())
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    model.save_pretrained(directory)
    return directory


@pytest.fixture
async def worker() -> AsyncIterator["worker_pb2_grpc.WorkerServiceAsyncStub"]:
    """A worker with nothing loaded, behind a stub."""
    from tests.rpc.worker_client import running_worker

    async with running_worker() as stub:
        yield stub


@pytest.fixture
async def ready_worker(
    worker: "worker_pb2_grpc.WorkerServiceAsyncStub", llama: Path
) -> "worker_pb2_grpc.WorkerServiceAsyncStub":
    """A worker that holds `llama` and a small cache."""
    from tests.rpc.worker_client import init_cache, load

    await load(worker, llama)
    await init_cache(worker)
    return worker
