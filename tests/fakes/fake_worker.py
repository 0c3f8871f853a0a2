"""A WorkerService over real gRPC with the fake model: for tests of whatever talks to workers.

    async with FakeWorker() as worker:
        ...  # worker.address

It obeys epochs and step numbers as a real worker does, mirrors every sequence, checks each delta.
What no correct scheduler would send is collected in `violations`; leaving the block asserts that
there were none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType

import grpc
from google.protobuf.message import Message

from quire import __version__
from quire.contract.block_shipping import ImportOrder, ImportResult
from quire.contract.errors import ConfigError, StaleEpochError
from quire.contract.outputs import ModelInfo
from quire.contract.steps import StepGap, StepResult
from quire.contract.versions import PROTOCOL
from quire.contract.workers import CacheSpec, WorkerMirror
from quire.rpc import Server
from quire.v1 import worker_pb2, worker_pb2_grpc
from quire.wire.block_shipping import import_order_from_proto, import_result_to_proto
from quire.wire.caches import cache_spec_from_proto
from quire.wire.common import model_info_to_proto
from quire.wire.mirror import mirror_to_proto
from quire.wire.worker import execute_response_to_proto, scheduler_outputs_from_proto
from tests.fakes.fake_model import FakeModel, WrongOrderError

FAKE_MODEL = ModelInfo(
    name="fake",
    architecture="FakeForCausalLM",
    dtype="float32",
    vocab_size=997,
    max_model_len=256,
    eos_token_ids=(2,),
    num_parameters=1,
    embedding_size=4,
)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One worker on 127.0.0.1.

    Args:
        num_blocks: what ProfileCache answers.
        num_host_blocks: what InitCache answers.
        model: what LoadModel answers; a given max_model_len replaces its own.
        version: what Describe answers.
        protocol_version: what Describe answers.
        interceptors: of its server.
        port: to listen on; 0 takes a free one.
        load_error: LoadModel fails with it.
        checkpoint_digest: what LoadModel answers.
        scheduler_name: what Describe answers: who drives it.
        device: what Describe answers.
        gpu: what Describe answers.

    Attributes:
        address: where it listens, once entered.
        epoch: highest seen.
        fake: model and mirrors, once InitCache was called.
        violations: wrong orders received.
        num_steps: steps run.
        load_requests: every LoadModel request received.
        loses_next_step: set by a test to end the stream with a gap.
        mistakes_next_token: set by a test to report another token than rank 0, once.
        heartbeat: sent for each of the scheduler's; None sends none.
        hung_steps: those that the scheduler found to hang.
        num_heartbeats: of schedulers.
        steps_allowed: cleared by a test to hold every step back.
        mirror_allowed: cleared by a test to hold Mirror back, as a step that hangs does.
        imports: every order to import blocks received.
        on_import: set by a test: fills blocks of the fake as an order says.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_host_blocks: int = 0,
        model: ModelInfo = FAKE_MODEL,
        version: str = __version__,
        protocol_version: int = PROTOCOL,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        port: int = 0,
        load_error: Exception | None = None,
        checkpoint_digest: bytes = b"fake",
        scheduler_name: str = "",
        device: str = "cpu",
        gpu: str = "",
    ) -> None:
        self.address = ""
        self.epoch = 0
        self.fake: FakeModel | None = None
        self.violations: list[str] = []
        self.num_steps = 0
        self.load_requests: list[worker_pb2.LoadModelRequest] = []
        self.loses_next_step = False
        self.mistakes_next_token = False
        self.heartbeat: worker_pb2.HeartbeatResponse | None = worker_pb2.HeartbeatResponse()
        self.hung_steps: list[int] = []
        self.num_heartbeats = 0
        self.steps_allowed = asyncio.Event()
        self.steps_allowed.set()
        self.mirror_allowed = asyncio.Event()
        self.mirror_allowed.set()
        self.imports: list[ImportOrder] = []
        self.on_import: Callable[[ImportOrder], Awaitable[ImportResult]] | None = None
        self.step_seen = asyncio.Condition()
        self._device = device
        self._gpu = gpu
        self._num_blocks = num_blocks
        self._num_host_blocks = num_host_blocks
        self._model = model
        self.version = version
        self.protocol_version = protocol_version
        self._port = port
        self._load_error = load_error
        self._checkpoint_digest = checkpoint_digest
        self._cache = CacheSpec(0)
        self.scheduler_name = scheduler_name
        self.rendezvous = ""
        self._rank = 0
        self._server = Server(["quire.v1.WorkerService"], interceptors=interceptors)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server.grpc_server)

    async def __aenter__(self) -> "FakeWorker":
        self.address = await self._server.start("127.0.0.1", self._port)
        await self._server.set_serving(True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()
        assert not self.violations, self.violations

    async def kill(self) -> None:
        """Stop at once: every stream breaks."""
        await self._server.grpc_server.stop(None)

    @property
    def sequences(self) -> int:
        """How many sequences it mirrors."""
        return 0 if self.fake is None else len(self.fake.sequences)

    async def wait_steps(self, count: int) -> None:
        """Return when `count` steps have run."""
        async with self.step_seen:
            await self.step_seen.wait_for(lambda: self.num_steps >= count)

    # ------------------------------------------------------------ unary calls

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.DescribeResponse:
        return worker_pb2.DescribeResponse(
            version=self.version,
            protocol_version=self.protocol_version,
            device=self._device,
            isa="fake",
            gpu=self._gpu,
            epoch=self.epoch,
            num_blocks=0 if self.fake is None else self.fake.num_blocks,
            scheduler_name=self.scheduler_name,
        )

    async def OpenRendezvous(
        self, request: worker_pb2.OpenRendezvousRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.OpenRendezvousResponse:
        self._obey(request)
        self.rendezvous = f"{request.host}:9"
        return worker_pb2.OpenRendezvousResponse(distributed_init_address=self.rendezvous)

    async def LoadModel(
        self, request: worker_pb2.LoadModelRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.LoadModelResponse:
        self._obey(request)
        self.load_requests.append(request)
        self._rank = request.tensor_parallel_rank
        if self._load_error is not None:
            raise self._load_error
        model = model_info_to_proto(self._model)
        model.name = request.served_model_name
        if request.options.HasField("max_model_len"):
            if request.options.max_model_len > self._model.max_model_len:
                raise ConfigError(f"max_model_len: must be at most {self._model.max_model_len}")
            model.max_model_len = request.options.max_model_len
        return worker_pb2.LoadModelResponse(model=model, checkpoint_digest=self._checkpoint_digest)

    async def ProfileCache(
        self, request: worker_pb2.ProfileCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ProfileCacheResponse:
        self._obey(request)
        return worker_pb2.ProfileCacheResponse(num_blocks=self._num_blocks, block_bytes=64)

    async def InitCache(
        self, request: worker_pb2.InitCacheRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.InitCacheResponse:
        self._obey(request)
        spec = cache_spec_from_proto(request)
        if spec.keeps_contents:
            assert self.fake is not None
            assert self._cache == replace(spec, keeps_contents=False)
            self.fake.sequences.clear()
        else:
            self._cache = spec
            self.fake = FakeModel(
                spec.options.block_size,
                spec.num_blocks,
                self._model.vocab_size,
                self._num_host_blocks,
            )
        return worker_pb2.InitCacheResponse(num_host_blocks=self._num_host_blocks)

    async def ImportBlocks(
        self, request: worker_pb2.ImportBlocksRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ImportBlocksResponse:
        self._obey(request)
        order = import_order_from_proto(request)
        self.imports.append(order)
        assert self.on_import is not None, "the test expects it"
        return import_result_to_proto(await self.on_import(order))

    def _obey(self, request: Message) -> None:
        epoch = request.epoch  # type: ignore[attr-defined]
        if epoch < self.epoch:
            raise StaleEpochError(f"epoch {epoch} is older than {self.epoch}")
        self.epoch = epoch

    # ------------------------------------------------------------ steps

    async def Heartbeat(
        self,
        requests: AsyncIterator[worker_pb2.HeartbeatRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[worker_pb2.HeartbeatResponse]:
        async for request in requests:
            self.num_heartbeats += 1
            if request.hung_step_id:
                self.hung_steps.append(request.hung_step_id)
            if self.heartbeat is not None:
                yield self.heartbeat

    async def Execute(
        self,
        requests: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        expected = 1
        async for request in requests:
            message = request.scheduler_outputs
            await self.steps_allowed.wait()
            self._obey(message)
            if message.step_id != expected or self.loses_next_step:
                self.loses_next_step = False
                yield execute_response_to_proto(StepGap(expected, message.step_id))
                return
            if self.fake is None:
                # No violation: gRPC may bring the stream of a worker that was here before.
                raise ConfigError("cache: must be allocated first, by InitCache")
            try:
                result = self.fake.step(scheduler_outputs_from_proto(message))
            except WrongOrderError as error:
                self.violations.append(f"step {message.step_id}: {error}")
                return
            expected += 1
            async with self.step_seen:
                self.num_steps += 1
                self.step_seen.notify_all()
            # As a real worker, only rank 0 answers with more than tokens.
            if self._rank != 0:
                token_ids = list(result.token_ids)
                if self.mistakes_next_token and token_ids:
                    self.mistakes_next_token = False
                    token_ids[0] += 1
                result = StepResult(result.sequence_ids, token_ids)
            result = replace(
                result,
                epoch=message.epoch,
                step_id=message.step_id,
                model_us=20,
                sample_us=10,
                worker_us=30,
            )
            yield execute_response_to_proto(result)

    async def Mirror(
        self, request: worker_pb2.MirrorRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.MirrorResponse:
        self._obey(request)
        await self.mirror_allowed.wait()
        if self.fake is None:
            return worker_pb2.MirrorResponse()
        return mirror_to_proto(
            WorkerMirror(
                cache=self._cache,
                blocks=tuple(self.fake.contents),
                host_blocks=tuple(self.fake.host_contents),
            )
        )

    async def Reset(
        self, request: worker_pb2.ResetRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.ResetResponse:
        self._obey(request)
        if self.fake is not None:
            self.fake.sequences.clear()
        return worker_pb2.ResetResponse()
