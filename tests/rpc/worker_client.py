"""A worker behind a real server, and a small client that gives orders as a scheduler would."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest

from quire.rpc import open_channel
from quire.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from worker_svc.config import WorkerConfig
from worker_svc.device.cpu import CpuDevice
from worker_svc.service.server import WorkerServer

WorkerStub: TypeAlias = "worker_pb2_grpc.WorkerServiceAsyncStub"

PROMPT = [5, 9, 77, 30, 31, 8, 100, 12, 60, 3]
# The token whose embedding is not a number in the model of the fixture `llama`.
POISON = 129
BLOCK_SIZE = 8
NUM_BLOCKS = 64
STEP_TIMEOUT_S = 60


class Steps:
    """An Execute stream."""

    def __init__(self, stub: WorkerStub, epoch: int) -> None:
        self.epoch = epoch
        self.call = stub.Execute()
        self.step_id = 0

    async def send(self, *, step_id: int | None = None, **orders: Any) -> None:
        """Send a step, the next one unless another id is given."""
        self.step_id = self.step_id + 1 if step_id is None else step_id
        outputs = worker_pb2.SchedulerOutputs(epoch=self.epoch, step_id=self.step_id, **orders)
        await self.call.write(worker_pb2.ExecuteRequest(scheduler_outputs=outputs))

    async def receive(self) -> worker_pb2.ExecuteResponse:
        """Return the next response.

        Raises:
            grpc.aio.AioRpcError: the stream ended with an error.
        """
        response = await asyncio.wait_for(self.call.read(), STEP_TIMEOUT_S)
        if response is grpc.aio.EOF:
            raise EOFError
        return response

    async def run(self, **orders: Any) -> worker_pb2.StepResult:
        """Send a step and return its result."""
        await self.send(**orders)
        response = await self.receive()
        assert response.WhichOneof("message") == "result"
        assert response.result.step_id == self.step_id
        return response.result

    async def decode(self, sequence_ids: Sequence[int]) -> worker_pb2.StepResult:
        """Compute one token of each sequence."""
        return await self.run(
            sequence_ids=sequence_ids,
            num_scheduled_tokens=[1] * len(sequence_ids),
            num_new_blocks=[0] * len(sequence_ids),
        )


def sequence(
    sequence_id: int, token_ids: Sequence[int], block_ids: Sequence[int], **params: Any
) -> worker_pb2.SequenceState:
    """A new sequence, greedy unless params set a temperature, with all its blocks."""
    return worker_pb2.SequenceState(
        sequence_id=sequence_id,
        token_ids=token_ids,
        block_ids=block_ids,
        sampling_params=common_pb2.SamplingParams(**{"temperature": 0.0, "seed": 1, **params}),
    )


def prefill(*sequences: worker_pb2.SequenceState) -> dict[str, Any]:
    """The orders that add sequences and compute all of their tokens."""
    return {
        "new_sequences": sequences,
        "sequence_ids": [state.sequence_id for state in sequences],
        "num_scheduled_tokens": [len(state.token_ids) for state in sequences],
        "num_new_blocks": [0] * len(sequences),
    }


@asynccontextmanager
async def running_worker() -> AsyncIterator[WorkerStub]:
    """A worker with nothing loaded."""
    config = WorkerConfig(port=0, num_threads=2, log_level="error")
    server = WorkerServer(config, CpuDevice())
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            yield worker_pb2_grpc.WorkerServiceStub(channel)  # type: ignore[misc]
    finally:
        await server.stop()


async def load(
    stub: WorkerStub, model: Path, epoch: int = 1, **fields: Any
) -> worker_pb2.LoadModelResponse:
    """Load a model."""
    request = worker_pb2.LoadModelRequest(
        epoch=epoch, model=str(model), served_model_name="tiny", **fields
    )
    return await stub.LoadModel(request)


async def init_cache(stub: WorkerStub, epoch: int = 1, **fields: Any) -> None:
    """Allocate a small cache."""
    options = worker_pb2.CacheOptions(block_size=BLOCK_SIZE)
    known = {"epoch": epoch, "num_blocks": NUM_BLOCKS, "options": options}
    await stub.InitCache(worker_pb2.InitCacheRequest(**known | fields))


async def error_of(awaitable: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """Return code and details of the error that the call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaitable
    return raised.value.code(), raised.value.details()
