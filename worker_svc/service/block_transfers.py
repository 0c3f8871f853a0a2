"""Blocks on their way between workers: this one's to others, and others' to this one."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import cast

import grpc

from quire.contract.addresses import check_address
from quire.contract.block_shipping import (
    BlockLayout,
    BlockOrder,
    BlockPiece,
    ImportOrder,
    ImportResult,
)
from quire.contract.errors import ConfigError, StaleEpochError
from quire.contract.workers import CachedBlock
from quire.observe.log import get_logger
from quire.rpc import Role, TlsFiles, open_channel
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.block_shipping import block_order_to_proto, block_piece_from_proto
from worker_svc.service.epochs import EpochGuard
from worker_svc.worker import Worker

PIECE_BYTES = 2**20
# Fetched and not yet written, of one order: what an order holds in memory beside one block.
UNWRITTEN_BYTES = 16 * 2**20
# Of each kind at once; others wait their turn.
MAX_CALLS = 4

CONNECT_S = 2.0

# Runs a call in the model's thread.
Run = Callable[[Callable[[], None]], asyncio.Future[None]]

log = get_logger()


class BlockTransfers:
    """Serves blocks to other workers, and fetches theirs.

    Blocks are read in a thread of its own, while the model's thread runs steps. They are written in
    the model's thread, between two steps.

    Args:
        worker: whose cache it is.
        run: runs a call in the model's thread.
        epochs: an order of an older epoch writes nothing more.
        tls: certificate of this worker; None speaks in the clear.

    Attributes:
        num_sent: blocks that other workers have fetched.
        num_received: blocks fetched from others.
    """

    def __init__(
        self, worker: Worker, run: Run, epochs: EpochGuard, tls: TlsFiles | None = None
    ) -> None:
        self._worker = worker
        self._run = run
        self._epochs = epochs
        self._tls = tls
        self._reader = ThreadPoolExecutor(
            1, thread_name_prefix="block-reader", initializer=worker.start_waiting_thread
        )
        self._sends, self._fetches = asyncio.Semaphore(MAX_CALLS), asyncio.Semaphore(MAX_CALLS)
        self.num_sent = 0
        self.num_received = 0

    def close(self) -> None:
        """Stop the thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    # ---------------------------------------------------------------- this worker's blocks

    async def send(self, order: BlockOrder) -> AsyncGenerator[BlockPiece, None]:
        """Yield the blocks that another worker asks for, up to the first that is not here.

        Raises:
            ConfigError: they have another layout here.
        """
        async with self._sends:
            # What the last step has computed is recorded with the next one, if there is any.
            await self._run(self._worker.settle)
            for digest in order.digests:
                # Of each block, since the cache may be another by now.
                self._check_layout(order.layout)
                block = await self._in_reader(digest)
                if block is None:
                    return
                contents, checksum = block
                for start in range(0, len(contents), PIECE_BYTES):
                    end = start + PIECE_BYTES
                    is_last = end >= len(contents)
                    yield BlockPiece(contents[start:end], checksum if is_last else b"")
                self.num_sent += 1

    def _check_layout(self, layout: BlockLayout) -> None:
        own = self._worker.block_layout
        if own is None or own != layout:
            raise ConfigError(f"layout: must be {own}, got {layout}")

    def _in_reader(self, digest: bytes) -> asyncio.Future[tuple[bytes, bytes] | None]:
        def read() -> tuple[bytes, bytes] | None:
            contents = self._worker.read_block(digest)
            return None if contents is None else (contents, sha256(contents).digest())

        return asyncio.get_running_loop().run_in_executor(self._reader, read)

    # ---------------------------------------------------------------- other workers' blocks

    async def fetch(self, epoch: int, order: ImportOrder) -> ImportResult:
        """Fill blocks with what another worker holds, as many as it sends in time.

        Whatever goes wrong there, the blocks that came before are kept.

        Raises:
            ConfigError: the address is malformed.
            StaleEpochError: a newer scheduler has taken over.
        """
        check_address("source", order.source)
        arrival, reason = _Arrival(order), ""
        deadline_s = asyncio.get_running_loop().time() + 1e-3 * order.limit_ms
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._fetches.acquire()
            try:
                await self._receive(epoch, order, arrival, deadline_s)
            finally:
                self._fetches.release()
        except TimeoutError:
            reason = "it cannot be reached, or is too slow"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except _UnusableBlocksError as error:
            reason = str(error)
        await self._write(epoch, arrival)
        if not reason and arrival.num_written < len(order.blocks):
            reason = "the other worker does not hold them all"
        if reason:
            log.warning("blocks_missing", source=order.source, reason=reason)
        self.num_received += arrival.num_written
        return ImportResult(arrival.num_written, arrival.num_bytes, reason)

    async def _receive(
        self, epoch: int, order: ImportOrder, arrival: "_Arrival", deadline_s: float
    ) -> None:
        layout, block_bytes = self._worker.block_layout, self._worker.block_bytes
        if layout is None:
            raise _UnusableBlocksError("no other worker's blocks are sure to be like these")
        digests = tuple(block.digest for block in order.blocks)
        request = block_order_to_proto(BlockOrder(layout, digests))
        async with open_channel(order.source, self._tls, Role.WORKER) as channel:
            stub = cast(
                "worker_pb2_grpc.WorkerServiceAsyncStub",
                worker_pb2_grpc.WorkerServiceStub(channel),
            )
            # One that is not there, or whom no policy of the network lets be reached.
            async with asyncio.timeout(CONNECT_S):
                await channel.channel_ready()
            call = stub.FetchBlocks(request)
            try:
                while True:
                    # Not around the write, which ends once it has begun.
                    async with asyncio.timeout_at(deadline_s):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        return
                    await self._take(arrival, message, block_bytes)
                    if arrival.num_unwritten_bytes >= UNWRITTEN_BYTES:
                        await self._write(epoch, arrival)
            finally:
                call.cancel()

    async def _take(
        self, arrival: "_Arrival", message: worker_pb2.FetchBlocksResponse, block_bytes: int
    ) -> None:
        contents = arrival.add(block_piece_from_proto(message), block_bytes)
        if contents is not None:
            # In a thread: of a large block it takes a millisecond.
            checksum = await asyncio.to_thread(lambda: sha256(contents).digest())
            arrival.complete(contents, checksum == message.checksum)

    async def _write(self, epoch: int, arrival: "_Arrival") -> None:
        """Write what has arrived, in the model's thread."""
        blocks, contents = arrival.take()
        if not blocks:
            return

        def write() -> None:
            # A newer scheduler uses the blocks for something else.
            if epoch != self._epochs.highest:
                raise StaleEpochError(f"epoch {epoch} is over; blocks are not written")
            self._worker.write_blocks(blocks, contents)

        await self._run(write)
        arrival.num_written += len(blocks)


class _UnusableBlocksError(Exception):
    """What another worker sent, or would send, is not what this one needs."""


class _Arrival:
    """Blocks of an order as they come.

    Args:
        order: the order.

    Attributes:
        num_written: blocks, from the first, that are written.
        num_bytes: of all that are complete.
        num_unwritten_bytes: of those that wait to be written.
    """

    def __init__(self, order: ImportOrder) -> None:
        self._blocks = order.blocks
        self._pieces: list[bytes] = []
        self._num_piece_bytes = 0
        self._complete: list[bytes] = []
        self._num_complete = 0
        self.num_written = 0
        self.num_bytes = 0
        self.num_unwritten_bytes = 0

    def add(self, piece: BlockPiece, block_bytes: int) -> bytes | None:
        """Take the next piece; return the block that it completes, if it does.

        Raises:
            _UnusableBlocksError: the block is of another size, or nobody asked for it.
        """
        if self._num_complete == len(self._blocks):
            raise _UnusableBlocksError("more blocks came than were asked for")
        self._pieces.append(piece.contents)
        self._num_piece_bytes += len(piece.contents)
        is_last = bool(piece.checksum)
        if self._num_piece_bytes > block_bytes or is_last != (self._num_piece_bytes == block_bytes):
            raise _UnusableBlocksError(
                f"a block must have {block_bytes} bytes, got {self._num_piece_bytes}"
            )
        if not is_last:
            return None
        contents = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._num_piece_bytes = [], 0
        return contents

    def complete(self, contents: bytes, is_whole: bool) -> None:
        """Count a block as arrived.

        Raises:
            _UnusableBlocksError: its checksum differs.
        """
        if not is_whole:
            raise _UnusableBlocksError("the checksum of a block differs")
        self._complete.append(contents)
        self._num_complete += 1
        self.num_bytes += len(contents)
        self.num_unwritten_bytes += len(contents)

    def take(self) -> tuple[tuple[CachedBlock, ...], list[bytes]]:
        """Return what is to be written, blocks and contents; it counts as unwritten no more."""
        first = self._num_complete - len(self._complete)
        contents, self._complete = self._complete, []
        self.num_unwritten_bytes = 0
        return self._blocks[first : self._num_complete], contents
