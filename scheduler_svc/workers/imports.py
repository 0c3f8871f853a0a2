"""Blocks that the workers of a cell fetch from those of another."""

import asyncio
from collections.abc import Sequence

from quire.contract.block_shipping import ImportOrder, ImportResult
from quire.contract.errors import QuireError, UnavailableError
from quire.contract.workers import CachedBlock
from scheduler_svc.workers.client import WorkerClient, WorkerFailedError


async def on_ranks(
    workers: Sequence[WorkerClient],
    epoch: int,
    source: Sequence[str],
    blocks: tuple[CachedBlock, ...],
    limit_ms: int,
) -> ImportResult:
    """Have each worker fill blocks from the worker of its rank in another cell.

    Args:
        workers: of the cell, in order of rank.
        epoch: under which they were formed.
        source: addresses of those of the other cell, in order of rank, as many.
        blocks: the same on every rank; no step may use them, or be in flight that did.
        limit_ms: as of ImportOrder.

    Returns:
        What every rank has.

    Raises:
        WorkerFailedError: a worker failed at it; all of them have ended.
        UnavailableError: a worker was lost, and may write to the blocks until they are formed
            again.
    """
    # All of them to their ends: the blocks are not free before.
    results = await asyncio.gather(
        *(
            worker.import_blocks(epoch, ImportOrder(address, blocks, limit_ms))
            for worker, address in zip(workers, source, strict=True)
        ),
        return_exceptions=True,
    )
    errors = [each for each in results if isinstance(each, BaseException)]
    # A lost worker first: the others have ended.
    for error in sorted(errors, key=_has_answered):
        raise error
    return min(
        (each for each in results if isinstance(each, ImportResult)),
        key=lambda result: result.num_blocks,
    )


def _has_answered(error: BaseException) -> bool:
    """Return whether a worker sent an error itself."""
    if isinstance(error, UnavailableError):
        return isinstance(error, WorkerFailedError)
    return isinstance(error, QuireError)
