"""A scheduler dies while it sends a step; the next one takes over ranks that wait for it."""

import asyncio
from pathlib import Path

import grpc
import pytest

from quire.v1 import worker_pb2
from quire.wire.mirror import mirror_from_proto
from tests.rpc.worker_client import (
    BLOCK_SIZE,
    PROMPT,
    Steps,
    WorkerStub,
    init_cache,
    load,
    prefill,
    running_worker,
    sequence,
)

# Longer than the test may take.
TIMEOUT_MS = 100_000
LATER = [*PROMPT, 4, 4, 4, 4, 4, 4, 4]


async def meet(ranks: tuple[WorkerStub, WorkerStub], model: Path, epoch: int) -> None:
    """Load the model on both ranks."""
    opened = await ranks[0].OpenRendezvous(
        worker_pb2.OpenRendezvousRequest(epoch=epoch, host="127.0.0.1")
    )
    fields = {
        "tensor_parallel_size": 2,
        "distributed_init_address": opened.distributed_init_address,
        "host": "127.0.0.1",
        "distributed_timeout_ms": TIMEOUT_MS,
        "distributed_secret": bytes(32),
    }
    await asyncio.gather(
        *(
            load(stub, model, epoch, tensor_parallel_rank=rank, **fields)
            for rank, stub in enumerate(ranks)
        )
    )


async def test_a_step_that_one_rank_alone_was_sent_is_discarded(llama: Path) -> None:
    async with asyncio.timeout(60), running_worker() as first, running_worker() as second:
        ranks = first, second
        await meet(ranks, llama, 1)
        await asyncio.gather(*(init_cache(stub) for stub in ranks))
        streams = [Steps(stub, epoch=1) for stub in ranks]
        orders = prefill(sequence(1, PROMPT, [3, 2]))
        await asyncio.gather(*(stream.run(**orders) for stream in streams))
        # It computes a full block, and the other rank never hears of it.
        await streams[0].send(**prefill(sequence(2, LATER, [5, 6, 7])))
        answer = asyncio.create_task(streams[0].receive())
        done, _ = await asyncio.wait({answer}, timeout=0.3)
        assert not done, "it waits for the other rank"

        request = worker_pb2.MirrorRequest(epoch=2)
        mirrors = await asyncio.gather(*(stub.Mirror(request) for stub in ranks))
        contents = [mirror_from_proto(mirror).blocks for mirror in mirrors]
        assert contents[0] == contents[1], "what one rank began is not computed"
        assert [block.block_id for block in contents[0]] == [3]
        assert {mirror.last_step_id for mirror in mirrors} == {1}

        await meet(ranks, llama, 2)
        await asyncio.gather(*(init_cache(stub, 2, keeps_contents=True) for stub in ranks))
        found = sequence(1, PROMPT, [3, 4])
        found.num_computed_tokens = BLOCK_SIZE
        orders = prefill(found) | {"num_scheduled_tokens": [len(PROMPT) - BLOCK_SIZE]}
        results = await asyncio.gather(*(Steps(stub, epoch=2).run(**orders) for stub in ranks))
        assert len(results[0].token_ids) == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await answer
