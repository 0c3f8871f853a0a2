"""The router's end of a session, for tests of the scheduler."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc

from quire.contract.sampling_params import SamplingParams
from quire.rpc import open_channel
from quire.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.wire.common import sampling_params_to_proto
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.server import SchedulerServer


@asynccontextmanager
async def running_scheduler(
    *workers: str, wait: bool = True, **settings: object
) -> AsyncIterator[tuple[SchedulerServer, str]]:
    """A scheduler over `workers`, and its address."""
    config = SchedulerConfig(
        model="/models/fake",
        served_model_name="fake",
        workers=workers,
        port=0,
        **{"block_size": 4, "watermark": 0.0, **settings},  # type: ignore[arg-type]
    )
    scheduler = SchedulerServer(config)
    try:
        address = await scheduler.start()
        if wait:
            await asyncio.wait_for(scheduler.wait_until_serving(), 20)
        yield scheduler, address
    finally:
        await scheduler.stop()


class RouterDouble:
    """A session, with everything it received sorted by request number."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.call = call
        self.welcome: scheduler_pb2.Welcome | None = None
        self.seeds: dict[int, int] = {}
        self.refused: dict[int, scheduler_pb2.Refused] = {}
        self.suspected: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, int] = {}
        self.states: list[scheduler_pb2.CellState] = []
        self.steps: list[scheduler_pb2.StepOutputs] = []
        self.block_hashes: set[int] = set()
        self.block_source: list[str] = []
        self.ended = False
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        """Take messages until the session ends."""
        try:
            await self._read()
        finally:
            self.ended = True
            async with self._changed:
                self._changed.notify_all()

    async def _read(self) -> None:
        while (message := await self.call.read()) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "welcome":
                    assert self.welcome is None
                    self.welcome = message.welcome
                    self.block_hashes = set(message.welcome.block_hashes)
                case "queued":
                    self.seeds[message.queued.request_number] = message.queued.seed
                case "refused":
                    self.refused[message.refused.request_number] = message.refused
                case "suspected":
                    self.suspected[message.suspected.request_number] = message.suspected.until
                case "step_outputs":
                    self._take(message.step_outputs)
                case "block_source":
                    assert not any(state.moving for state in self.states), "it comes before"
                    self.block_source = list(message.block_source.worker_addresses)
                case "cell_state":
                    self.states.append(message.cell_state)
                case "prefix_digest_delta":
                    self.block_hashes -= set(message.prefix_digest_delta.removed)
                    self.block_hashes |= set(message.prefix_digest_delta.added)
            async with self._changed:
                self._changed.notify_all()

    def _take(self, step: scheduler_pb2.StepOutputs) -> None:
        self.steps.append(step)
        for number, token_id in zip(step.request_numbers, step.token_ids, strict=True):
            assert number in self.seeds, "tokens come after Queued"
            assert number not in self.finished, "tokens end with the request"
            self.tokens.setdefault(number, []).append(token_id)
        for number, reason in zip(step.finished_request_numbers, step.finish_reasons, strict=True):
            assert number not in self.finished
            self.finished[number] = reason

    async def until(self, condition: "Callable[[RouterDouble], bool]") -> None:
        """Return when `condition(self)` holds after some message."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def submit(
        self,
        number: int,
        prompt: Sequence[int],
        params: SamplingParams,
        output_token_ids: Sequence[int] = (),
        suspect_until: int = 0,
        block_source: Sequence[str] = (),
    ) -> None:
        request = scheduler_pb2.Submission(
            request_number=number,
            request_id=f"request-{number}",
            prompt_token_ids=prompt,
            outputs=(
                [scheduler_pb2.SequenceOutput(token_ids=output_token_ids)]
                if output_token_ids
                else []
            ),
            sampling_params=sampling_params_to_proto(params),
            suspect_until=suspect_until,
            block_source=block_source,
        )
        await self.send(scheduler_pb2.SessionRequest(submission=request))

    async def cancel(self, *numbers: int) -> None:
        cancel = scheduler_pb2.Cancellation(request_numbers=numbers)
        await self.send(scheduler_pb2.SessionRequest(cancellation=cancel))

    async def send(self, request: scheduler_pb2.SessionRequest) -> None:
        await self.call.write(request)

    async def finish(self, *numbers: int) -> None:
        """Return when these requests have ended."""
        await self.until(lambda router: set(numbers) <= router.finished.keys())


@asynccontextmanager
async def open_session(
    address: str, metadata: Sequence[tuple[str, str]] = ()
) -> AsyncIterator[RouterDouble]:
    """A session with the scheduler at `address`, welcomed."""
    async with open_channel(address) as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Session(
            wait_for_ready=True, metadata=metadata
        )
        router = RouterDouble(call)
        reader = asyncio.create_task(router.read())
        try:
            await router.until(lambda r: r.welcome is not None)
            yield router
        finally:
            reader.cancel()
            call.cancel()
            await asyncio.gather(reader, return_exceptions=True)
