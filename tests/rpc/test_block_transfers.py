"""Workers send each other blocks: the bytes arrive, or the blocks count as not fetched."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from quire.contract.block_hashes import extend_block_hashes
from quire.contract.block_shipping import ImportOrder, ImportResult
from quire.contract.workers import CachedBlock
from quire.rpc import Role, Server, TlsFiles, open_channel
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.block_shipping import import_order_to_proto, import_result_from_proto
from tests.rpc.secure_server import make_certificates
from tests.rpc.worker_client import (
    BLOCK_SIZE,
    Steps,
    WorkerStub,
    error_of,
    init_cache,
    load,
    prefill,
    sequence,
)
from worker_svc.config import WorkerConfig
from worker_svc.device.cpu import CpuDevice
from worker_svc.service import block_transfers
from worker_svc.service.server import WorkerServer
from worker_svc.worker import Worker

EPOCH = 1
# Four full blocks, and a token that is computed anew.
TOKENS = [*range(3, 3 + 4 * BLOCK_SIZE), 7]
SOURCE_TABLE = [9, 4, 11, 2, 5]
TABLE = [1, 8, 3, 6, 0]
LIMIT_MS = 60_000


@dataclass
class Running:
    """A worker behind a real server.

    Attributes:
        address: "host:port".
        stub: of a client.
        worker: what it serves.
    """

    address: str
    stub: WorkerStub
    worker: Worker

    async def fetch(
        self, source: str, blocks: tuple[CachedBlock, ...], limit_ms: int = LIMIT_MS
    ) -> ImportResult:
        """Have it fill blocks from another."""
        request = import_order_to_proto(EPOCH, ImportOrder(source, blocks, limit_ms))
        return import_result_from_proto(await self.stub.ImportBlocks(request))


@asynccontextmanager
async def running(
    model: Path, certificates: Path | None = None, **options: int
) -> AsyncIterator[Running]:
    """A worker that holds a model and a small cache."""
    tls_dir = None if certificates is None else str(certificates / "worker")
    config = WorkerConfig(port=0, num_threads=1, log_level="error", tls_dir=tls_dir)
    server = WorkerServer(config, CpuDevice())
    tls = None if certificates is None else TlsFiles(certificates, Role.SCHEDULER)
    address = await server.start()
    try:
        async with open_channel(address, tls, Role.WORKER) as channel:
            stub: WorkerStub = worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[assignment]
            await load(stub, model, EPOCH)
            known = {"block_size": BLOCK_SIZE}
            await init_cache(stub, EPOCH, options=worker_pb2.CacheOptions(**known | options))
            yield Running(address, stub, server._worker)
    finally:
        await server.stop()


@pytest.fixture
async def source(llama: Path) -> AsyncIterator[Running]:
    async with running(llama) as worker:
        yield worker


@pytest.fixture
async def target(llama: Path) -> AsyncIterator[Running]:
    async with running(llama) as worker:
        yield worker


def digests_of(token_ids: list[int]) -> list[bytes]:
    digests: list[bytes] = []
    extend_block_hashes(digests, token_ids, BLOCK_SIZE, len(token_ids) // BLOCK_SIZE)
    return digests


BLOCKS = tuple(map(CachedBlock, TABLE, (1, 2, 3, 4), digests_of(TOKENS)))


async def compute(worker: Running) -> int:
    """Have it compute the text; return the token that follows."""
    result = await Steps(worker.stub, EPOCH).run(**prefill(sequence(1, TOKENS, SOURCE_TABLE)))
    return result.token_ids[0]


def assert_same_bytes(source: Running, target: Running) -> None:
    """The fetched blocks hold what the source computed, in both workers' own places."""
    for place, block in zip(SOURCE_TABLE, BLOCKS, strict=False):
        for worker, block_id in ((source, place), (target, block.block_id)):
            found = worker.worker._runner.mirror.contents.find(block.digest)  # type: ignore[union-attr]
            assert found is not None and found[0] == block_id
        assert source.worker.read_block(block.digest) == target.worker.read_block(block.digest)


async def test_fetched_blocks_are_those_that_the_other_worker_computed(
    source: Running, target: Running
) -> None:
    token = await compute(source)
    result = await target.fetch(source.address, BLOCKS)
    assert result == ImportResult(4, 4 * target.worker.block_bytes)
    assert_same_bytes(source, target)
    # A step that computes the last token alone goes on as the source did.
    state = sequence(5, TOKENS, TABLE)
    state.num_computed_tokens = 4 * BLOCK_SIZE
    step = prefill(state) | {"num_scheduled_tokens": [1]}
    assert (await Steps(target.stub, EPOCH).run(**step)).token_ids == [token]


async def test_workers_with_certificates_show_them_to_each_other(
    llama: Path, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path / "certificates").path
    async with running(llama, certificates) as source, running(llama, certificates) as target:
        await compute(source)
        assert (await target.fetch(source.address, BLOCKS)).num_blocks == 4
        assert_same_bytes(source, target)


async def test_a_block_that_is_sent_in_pieces_and_written_at_once_is_the_same(
    source: Running, target: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_transfers, "PIECE_BYTES", 100)
    monkeypatch.setattr(block_transfers, "UNWRITTEN_BYTES", 1)
    await compute(source)
    assert (await target.fetch(source.address, BLOCKS)).num_blocks == 4
    assert_same_bytes(source, target)


async def test_blocks_are_served_while_the_source_is_idle_and_forgotten_with_its_cache(
    source: Running, target: Running
) -> None:
    await compute(source)
    # A scheduler that has gone leaves the cache as it was.
    await source.stub.Reset(worker_pb2.ResetRequest(epoch=EPOCH))
    assert (await target.fetch(source.address, BLOCKS[:2])).num_blocks == 2
    await init_cache(source.stub, EPOCH)
    result = await target.fetch(source.address, BLOCKS)
    assert (result.num_blocks, bool(result.reason)) == (0, True)


async def test_blocks_behind_one_that_is_missing_do_not_come(
    source: Running, target: Running
) -> None:
    await compute(source)
    other = CachedBlock(TABLE[2], 3, bytes(32))
    result = await target.fetch(source.address, (*BLOCKS[:2], other, BLOCKS[3]))
    assert result.num_blocks == 2
    assert result.reason
    assert target.worker.read_block(BLOCKS[3].digest) is None


async def test_a_block_that_is_written_while_it_is_read_is_not_sent(
    source: Running, target: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compute(source)
    runner = source.worker._runner
    assert runner is not None
    contents, block_bytes = runner.mirror.contents, runner.cache_engine.block_bytes
    read = block_bytes.read

    def read_late(block_id: int) -> bytes:
        # As if a step had written the same tokens anew meanwhile.
        if block_id == SOURCE_TABLE[1]:
            contents.drop([block_id])
            contents.add(CachedBlock(block_id, 2, BLOCKS[1].digest))
        return read(block_id)

    monkeypatch.setattr(block_bytes, "read", read_late)
    assert (await target.fetch(source.address, BLOCKS)).num_blocks == 1


async def test_workers_of_other_layouts_send_nothing(llama: Path, target: Running) -> None:
    async with running(llama, block_size=2 * BLOCK_SIZE) as source:
        await compute(source)
        result = await target.fetch(source.address, BLOCKS)
        assert result.num_blocks == 0
        assert "layout" in result.reason


async def test_a_worker_that_is_not_there_costs_no_error(target: Running) -> None:
    async with asyncio.timeout(60):
        result = await target.fetch("127.0.0.1:1", BLOCKS)
    assert (result.num_blocks, bool(result.reason)) == (0, True)


async def test_orders_of_an_older_scheduler_are_refused(source: Running, target: Running) -> None:
    await target.stub.Reset(worker_pb2.ResetRequest(epoch=EPOCH + 1))
    code, _ = await error_of(target.fetch(source.address, BLOCKS))
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_blocks_outside_the_cache_are_refused(source: Running, target: Running) -> None:
    await compute(source)
    code, _ = await error_of(
        target.fetch(source.address, (CachedBlock(10**6, 1, BLOCKS[0].digest),))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT


# ------------------------------------------------------------------ a source that does wrong

Answer = Callable[[int], AsyncIterator[worker_pb2.FetchBlocksResponse]]


class WrongSource(worker_pb2_grpc.WorkerServiceServicer):
    """A worker that sends what it should not.

    Attributes:
        answer: what it sends, given the bytes of a block.
    """

    def __init__(self, answer: Answer, block_bytes: int) -> None:
        self._answer = answer
        self._block_bytes = block_bytes

    async def FetchBlocks(
        self, request: worker_pb2.FetchBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
        async for each in self._answer(self._block_bytes):
            yield each


def whole(size: int, *, damaged: bool = False) -> worker_pb2.FetchBlocksResponse:
    contents = b"\1" * size
    checksum = bytes(32) if damaged else sha256(contents).digest()
    return worker_pb2.FetchBlocksResponse(contents=contents, checksum=checksum)


async def damaged(size: int) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
    yield whole(size)
    yield whole(size, damaged=True)


async def too_long(size: int) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
    yield whole(size)
    yield whole(size + 1)


async def too_short(size: int) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
    yield whole(size)
    yield whole(size - 1)


async def too_many(size: int) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
    for _ in range(2):
        yield whole(size)


async def stalled(size: int) -> AsyncIterator[worker_pb2.FetchBlocksResponse]:
    yield whole(size)
    await asyncio.Event().wait()


@pytest.mark.parametrize("answer", [damaged, too_long, too_short, too_many, stalled])
async def test_what_came_before_an_error_is_kept(target: Running, answer: Answer) -> None:
    server = Server(["quire.v1.WorkerService"])
    servicer = WrongSource(answer, target.worker.block_bytes)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.grpc_server)
    address = await server.start("127.0.0.1", 0)
    try:
        blocks = BLOCKS[:1] if answer is too_many else BLOCKS
        limit_ms = 1_000 if answer is stalled else LIMIT_MS
        result = await target.fetch(address, blocks, limit_ms)
    finally:
        await server.stop()
    assert (result.num_blocks, bool(result.reason)) == (1, True)
    assert target.worker.read_block(BLOCKS[0].digest) == b"\1" * target.worker.block_bytes
    assert target.worker.read_block(BLOCKS[1].digest) is None
