"""A SchedulerService without workers: deterministic tokens, under the control of the test.

The next token of a sequence is a function of its prompt, its seed and its position and of nothing
else, as the real cluster promises, so that a request continued after a broken session must produce
what it would have anyway.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from quire.contract.outputs import CellState, ModelInfo
from quire.contract.pooling_params import PoolingParams
from quire.contract.versions import PROTOCOL
from quire.rpc import Server, TlsFiles
from quire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from quire.wire.common import (
    cell_state_to_proto,
    model_info_to_proto,
    pooling_params_from_proto,
)
from tests.fakes.fake_model import fake_vector

MODEL = ModelInfo(
    name="fake",
    architecture="FakeForCausalLM",
    dtype="float32",
    vocab_size=1000,
    max_model_len=256,
    eos_token_ids=(1,),
    num_parameters=0,
    embedding_size=4,
)

# (prompt token ids, seed, number of output tokens so far) -> next token id
NextToken = Callable[[Sequence[int], int, int], int]


def echo(prompt: Sequence[int], seed: int, position: int) -> int:
    """The prompt, over and over."""
    return prompt[position % len(prompt)]


@dataclass(eq=False)
class FakeRequest:
    """A request that the fake runs."""

    number: int
    request_id: str
    prompt: tuple[int, ...]
    params: common_pb2.SamplingParams
    num_resumed: int
    seed: int
    output: list[int]
    traceparent: str
    was_queued: bool
    tenant: tuple[str, float]
    suspect_until: int
    num_lost_alone: int
    quotas: scheduler_pb2.Quotas | None
    num_cells: int
    pooling: PoolingParams | None


@dataclass(eq=False)
class FakeSession:
    """One open stream: what it runs and what it has yet to send."""

    running: dict[int, FakeRequest] = field(default_factory=dict)
    outgoing: "asyncio.Queue[scheduler_pb2.SessionResponse]" = field(default_factory=asyncio.Queue)
    broken: asyncio.Event = field(default_factory=asyncio.Event)


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """See `running_scheduler`. Everything a router did is kept in lists for the test to look at."""

    def __init__(self, next_token: NextToken = echo, model: ModelInfo = MODEL, seed: int = 77):
        """Make a fake that steps freely.

        Args:
            next_token: chooses tokens.
            model: sent in the welcome.
            seed: given to requests that have none.
        """
        self.model = model
        self.num_sessions = 0
        self.protocol_version = PROTOCOL
        self.submitted: list[FakeRequest] = []
        self.cancelled: list[str] = []
        self.num_steps = 0
        self.num_refused = 0
        self.num_tokens_until_error: int | None = None
        self.failure = common_pb2.FINISH_REASON_ERROR  # that it then has
        self.num_cached_tokens = 0  # reported for each prompt
        self._next_token = next_token
        self._seed = seed
        self._sessions: list[FakeSession] = []
        self._refusals: deque[scheduler_pb2.Refused] = deque()
        # Steps run while this is set, or as often as `step` allows.
        self._free = asyncio.Event()
        self._free.set()
        self._allowed_steps = 0
        self._drop_after: list[int] = []
        self.block_hashes: list[int] = []
        self._changed = asyncio.Condition()

    # Knobs.

    def hold(self) -> None:
        """Stop stepping until `step` or `release`."""
        self._free.clear()

    async def step(self, count: int = 1) -> None:
        """Run this many steps, while held; return when they have been sent."""
        target = self.num_steps + count
        self._allowed_steps += count
        async with self._changed:
            self._changed.notify_all()
        await self.until(lambda: self.num_steps >= target)

    async def release(self) -> None:
        """Step freely again."""
        self._free.set()
        async with self._changed:
            self._changed.notify_all()

    def drop_sessions(self) -> None:
        """Break every open session, as a scheduler that dies does."""
        for session in self._sessions:
            session.broken.set()

    def drop_after_steps(self, *counts: int) -> None:
        """Break the sessions when so many steps have run, for each of the counts."""
        self._drop_after = sorted(counts)

    def refuse_next(self, refused: scheduler_pb2.Refused) -> None:
        """Refuse the next request that is submitted."""
        self._refusals.append(refused)

    def num_running(self) -> int:
        """Requests that run now, over all sessions."""
        return sum(len(session.running) for session in self._sessions)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; looked at after every message and step."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def send_state(self, state: CellState) -> None:
        """Report a state to every router."""
        for session in self._sessions:
            session.outgoing.put_nowait(
                scheduler_pb2.SessionResponse(cell_state=cell_state_to_proto(state))
            )

    async def suspect_all(self, until: int, num_lost_alone: int) -> None:
        """Report all requests as suspects."""
        for session in self._sessions:
            for number in session.running:
                suspected = scheduler_pb2.Suspected(
                    request_number=number, until=until, num_lost_alone=num_lost_alone
                )
                session.outgoing.put_nowait(scheduler_pb2.SessionResponse(suspected=suspected))

    async def send_digest(self, added: Sequence[int], removed: Sequence[int] = ()) -> None:
        """Send every router the changes of the prefix cache."""
        delta = scheduler_pb2.PrefixDigestDelta(added=added, removed=removed)
        for session in self._sessions:
            session.outgoing.put_nowait(scheduler_pb2.SessionResponse(prefix_digest_delta=delta))

    # The service.

    async def Session(self, request_iterator, context: grpc.aio.ServicerContext):
        session = FakeSession()
        self._sessions.append(session)
        self.num_sessions += 1
        welcome = scheduler_pb2.Welcome(
            epoch=self.num_sessions,
            model=model_info_to_proto(self.model),
            cell_state=cell_state_to_proto(CellState(epoch=self.num_sessions, block_size=16)),
            block_hashes=self.block_hashes,
            protocol_version=self.protocol_version,
        )
        session.outgoing.put_nowait(scheduler_pb2.SessionResponse(welcome=welcome))
        tasks = [
            asyncio.create_task(self._read(session, request_iterator)),
            asyncio.create_task(self._run(session)),
        ]
        try:
            broken = asyncio.create_task(session.broken.wait())
            tasks.append(broken)
            while not broken.done():
                next_message = asyncio.create_task(session.outgoing.get())
                await asyncio.wait({next_message, broken}, return_when=asyncio.FIRST_COMPLETED)
                if next_message.done():
                    yield next_message.result()
                    session.outgoing.task_done()
                else:
                    next_message.cancel()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the test")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._sessions.remove(session)
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _read(self, session: FakeSession, messages) -> None:
        async for message in messages:
            if message.WhichOneof("message") == "submission":
                self._submit(session, message.submission)
            else:
                for number in message.cancellation.request_numbers:
                    request = session.running.pop(number, None)
                    if request is not None:
                        self.cancelled.append(request.request_id)
            await self._notify()

    def _submit(self, session: FakeSession, submit: scheduler_pb2.Submission) -> None:
        if self._refusals:
            refused = self._refusals.popleft()
            self.num_refused += 1
            refused.request_number = submit.request_number
            session.outgoing.put_nowait(scheduler_pb2.SessionResponse(refused=refused))
            return
        params = submit.sampling_params
        # One sequence: what is sampled here does not depend on an index.
        output = [token_id for each in submit.outputs for token_id in each.token_ids]
        request = FakeRequest(
            submit.request_number,
            submit.request_id,
            tuple(submit.prompt_token_ids),
            params,
            len(output),
            params.seed if params.HasField("seed") else self._seed,
            output,
            submit.traceparent,
            submit.was_queued,
            (submit.tenant, submit.tenant_weight if submit.HasField("tenant_weight") else 1.0),
            submit.suspect_until,
            submit.num_lost_alone,
            submit.quotas if submit.HasField("quotas") else None,
            submit.num_cells,
            pooling_params_from_proto(submit),
        )
        assert not request.output or params.HasField("seed"), "resumed without a seed"
        self.submitted.append(request)
        session.running[request.number] = request
        queued = scheduler_pb2.Queued(request_number=request.number, seed=request.seed)
        session.outgoing.put_nowait(scheduler_pb2.SessionResponse(queued=queued))

    def _may_step(self, session: FakeSession) -> bool:
        return bool(session.running) and (self._free.is_set() or self._allowed_steps > 0)

    async def _run(self, session: FakeSession) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._may_step(session))
                if not self._free.is_set():
                    self._allowed_steps -= 1
                session.outgoing.put_nowait(
                    scheduler_pb2.SessionResponse(step_outputs=self._step(session))
                )
                self.num_steps += 1
                if self._drop_after and self.num_steps >= self._drop_after[0]:
                    self._drop_after.pop(0)
                    self.drop_sessions()
                self._changed.notify_all()
            if self._free.is_set():
                # No faster than the connection takes them: a router is to have time to cancel.
                await session.outgoing.join()
            else:
                await asyncio.sleep(0)

    def _step(self, session: FakeSession) -> scheduler_pb2.StepOutputs:
        outputs = scheduler_pb2.StepOutputs()
        has_logprobs = any(each.params.HasField("logprobs") for each in session.running.values())
        for request in list(session.running.values()):
            if request.pooling is not None:
                vector = fake_vector(request.prompt, request.pooling)
                outputs.vectors.add(request_number=request.number, vector=vector)
                outputs.finished_request_numbers.append(request.number)
                outputs.finish_reasons.append(common_pb2.FINISH_REASON_STOP)
                del session.running[request.number]
                continue
            if not request.output:
                self._report_prompt(request, outputs)
            token_id = self._next_token(request.prompt, request.seed, len(request.output))
            request.output.append(token_id)
            outputs.request_numbers.append(request.number)
            outputs.token_ids.append(token_id)
            if has_logprobs:
                outputs.logprobs.append(_logprobs(request, token_id))
            stops = set(request.params.stop_token_ids)
            if not request.params.ignore_eos:
                stops |= set(self.model.eos_token_ids)
            if token_id in stops:
                reason = common_pb2.FINISH_REASON_STOP
            elif len(request.output) == self.num_tokens_until_error:
                reason = self.failure
            elif len(request.output) >= request.params.max_tokens:
                reason = common_pb2.FINISH_REASON_LENGTH
            else:
                continue
            outputs.finished_request_numbers.append(request.number)
            outputs.finish_reasons.append(reason)
            del session.running[request.number]
        return outputs

    def _report_prompt(self, request: FakeRequest, outputs: scheduler_pb2.StepOutputs) -> None:
        """Report the cached tokens and the log-probabilities of a prompt."""
        number, params = request.number, request.params
        if self.num_cached_tokens:
            outputs.cached_tokens.add(request_number=number, num_tokens=self.num_cached_tokens)
        if params.HasField("prompt_logprobs"):
            logprobs = [
                _position(token_id, params.prompt_logprobs, place)
                for place, token_id in enumerate(request.prompt[1:], start=1)
            ]
            outputs.prompt_logprobs.add(request_number=number, first_position=1, logprobs=logprobs)


def _logprobs(request: FakeRequest, token_id: int) -> common_pb2.TokenLogprobs:
    """Those of a position of the output; empty where none were asked for."""
    if not request.params.HasField("logprobs"):
        return common_pb2.TokenLogprobs()
    return _position(token_id, request.params.logprobs, len(request.output))


def _position(token_id: int, num_top: int, position: int) -> common_pb2.TokenLogprobs:
    """Any that differ from position to position."""
    token_ids = [token_id, *range(2, 2 + num_top)]
    logprobs = [-0.1 * (position + place) for place in range(len(token_ids))]
    return common_pb2.TokenLogprobs(token_ids=token_ids, logprobs=logprobs, sampled_rank=1)


@asynccontextmanager
async def running_scheduler(
    fake: FakeScheduler,
    port: int = 0,
    host: str = "127.0.0.1",
    tls: TlsFiles | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> AsyncIterator[str]:
    """Serve a fake and yield its address.

    Args:
        fake: the servicer.
        port: 0 takes a free one.
        host: a loopback address.
        tls: its certificate, if it has one.
        interceptors: of its server.
    """
    server = Server(["quire.v1.SchedulerService"], tls=tls, interceptors=interceptors)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(fake, server.grpc_server)
    address = await server.start(host, port)
    try:
        await server.set_serving(True)
        yield address
    finally:
        await server.stop(0)
