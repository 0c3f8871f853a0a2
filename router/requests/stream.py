"""One open request: what it has produced, and what its client has yet to read."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from quire.contract.callers import ANYONE, Caller
from quire.contract.errors import InvalidRequestError, QuireError
from quire.contract.inputs import ReceivedOutput, ResumeInput
from quire.contract.outputs import Delta, Event, FinishReason, Hypothesis, Started, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.observe.tracing import Span
from router.requests.deadline import Deadline
from router.requests.output import Output, max_kept_positions
from router.requests.reader import MAX_UNREAD_TOKENS, Backlog, StreamOwner, StreamReader
from router.requests.replay import Replay
from router.requests.resume import shows_at_end, stop_token_ids, take_over
from router.requests.scheduler_params import scheduler_params
from router.requests.time_ledger import TimeLedger
from router.requests.trail import Trail
from router.requests.validate import ValidGenerateRequest
from router.text.detokenize import Detokenizer


class RequestStream:
    """The state of one request at the router: all that is needed to start it again elsewhere.

    One side is fed by the scheduler's session (`mark_queued`, `push_token`, `finish`, `fail`; none
    of them waits), the other is read by the client (`events`), and delays none.

    With best_of, all sequences are kept back until the last one has ended, and the most probable
    ones are given out: here, because a stop string, which may end any of them, is seen here.
    """

    def __init__(
        self,
        request: ValidGenerateRequest,
        make_detokenizer: Callable[[], Detokenizer],
        ledger: TimeLedger,
        span: Span,
        caller: Caller = ANYONE,
        deadline_s: float | None = None,
    ):
        """Prepare the stream of a request.

        Args:
            request: to be submitted.
            make_detokenizer: of each output.
            ledger: of its time.
            span: of the call.
            caller: whose API key it came with.
            deadline_s: until when its client waits, on the monotonic clock; None for ever.
        """
        self.request = request
        self.caller = caller
        self.ledger = ledger
        self.trail = Trail(request, span, ledger)
        self.sampling_params: SamplingParams = request.sampling_params
        self._was_queued = False
        self.is_resumed = False  # its client has a part of the answer, from another stream
        self._received: tuple[ReceivedOutput, ...] = ()
        self.numerics_id = ""
        self.suspect_until = self.num_lost_alone = 0  # as of Submission; set by the session
        self.num_cached_tokens = 0  # as of Finished; set by the session
        self.block_source: tuple[str, ...] = ()  # likewise
        self.ended = False
        self._deadline = Deadline(deadline_s)
        self._make_detokenizer = make_detokenizer
        params = request.sampling_params
        self._outputs = [
            self._new_output() for _ in range(0 if params.use_beam_search else params.width)
        ]
        # For the client, in this order; then what the outputs hold.
        self._started: Started | None = None
        self._start_unread = False
        self._was_start_read = False  # by a client, which can come back then
        self._prompt_logprobs: Replay[TokenLogprobs] = Replay(
            max_kept_positions(params.prompt_logprobs) if request.resumable else 0
        )
        self.error: QuireError | None = None
        self.unread = asyncio.Event()
        self.reader: StreamReader | None = None
        # What is shown at the end is no backlog.
        self._backlog = Backlog(math.inf if shows_at_end(params) else MAX_UNREAD_TOKENS * params.n)
        self.owner: StreamOwner  # set when the request is opened

    @property
    def request_id(self) -> str:
        """Id of the request, unique among those open at this router."""
        return self.request.request_id

    @property
    def has_begun(self) -> bool:
        """Whether a cell has taken it before: here, or where its client resumes it from."""
        return self._was_queued or self.is_resumed

    @property
    def max_num_tokens(self) -> int:
        """Length, prompt included, at which its sequences end."""
        has_tokens = self.request.pooling_params is None
        num_more = (self.sampling_params.max_tokens or 0) if has_tokens else 0
        return len(self.request.prompt_token_ids) + num_more

    @property
    def unfinished_outputs(self) -> dict[int, Sequence[int]]:
        """Tokens of the sequences that go on, by index; empty if there are no tokens at all."""
        if not any(output.token_ids or output.finish_reason for output in self._outputs):
            return {}
        return {
            index: output.token_ids
            for index, output in enumerate(self._outputs)
            if output.finish_reason is None
        }

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all its outputs so far."""
        return sum(len(output.token_ids) for output in self._outputs)

    @property
    def may_be_resumed(self) -> bool:
        """Whether it may go on without a client, which has what it takes to come back."""
        is_aborted = any(each.finish_reason is FinishReason.ABORT for each in self._outputs)
        ends = self._deadline.is_near or is_aborted or self.error is not None
        return self.request.resumable and self._was_start_read and not ends

    @property
    def tokens_to_compute(self) -> Sequence[int]:
        """The prompt, and what the first sequence that goes on has added to it elsewhere."""
        prompt = self.request.prompt_token_ids
        output = next(iter(self.unfinished_outputs.values()), ())
        return (*prompt, *output) if output else prompt

    async def take_over(self, resumed: ResumeInput) -> None:
        """Go on after what the client has received. Called before anything else.

        What it has of outputs that are known at the end only is left out then.

        Raises:
            InvalidRequestError: the text of received tokens is another.
        """
        params, model = self.sampling_params, self.request.model
        self.is_resumed, self.numerics_id = True, resumed.numerics_id
        self._prompt_logprobs.go_to(resumed.num_prompt_logprobs)
        if shows_at_end(params):
            self._received = resumed.received
            return
        for received in resumed.received:
            await take_over(self._outputs[received.index], received, params, model)
        if all(output.finish_reason for output in self._outputs):
            # Only the end itself was not received.
            self._start(params.seed or 0)
            self._close()

    def continues(self, other: "RequestStream") -> bool:
        """Return whether this is the other's request, resumed by the same caller."""
        return self.is_resumed and self.is_same_request(other)

    def is_same_request(self, other: "RequestStream") -> bool:
        """Return whether this is the other's request and seed, from the same caller."""
        request = dataclasses.replace(other.request, sampling_params=other.sampling_params)
        return self.caller.name == other.caller.name and self.request == request

    def attach(self, newer: "RequestStream", resumed: ResumeInput) -> bool:
        """Go on for a client that has come back, where it stands.

        Args:
            newer: what its call would run otherwise: the same request.
            resumed: what it has received.

        Returns:
            Whether what follows is here; if not, nothing has changed.
        """
        received = {output.index: output for output in resumed.received}
        visible = self._visible_outputs()
        stands = [(output, received.get(index, ReceivedOutput(index))) for index, output in visible]
        prompt_logprobs = self._prompt_logprobs
        if not (
            self.request.resumable
            and self._was_start_read
            and resumed.numerics_id == self.numerics_id
            and not newer._deadline.is_later_than(self._deadline)
            and prompt_logprobs.covers(resumed.num_prompt_logprobs)
            and all(output.may_go_on_after(each) for output, each in stands)
        ):
            return False
        if not visible:
            self._received = resumed.received
        for output, each in stands:
            output.skip(each)
        prompt_logprobs.go_to(resumed.num_prompt_logprobs)
        self.trail.goes_on_in(newer.trail)
        self._deadline = newer._deadline
        self._start_unread = True
        self.unread.set()
        return True

    def _new_output(self) -> Output:
        params = self.sampling_params
        ends = stop_token_ids(params, self.request.model)
        return Output(params, self._make_detokenizer(), ends, self.request.resumable)

    def submission(self, request_number: int, num_cells: int = 1) -> Submission:
        """Return what starts the request, or continues it after the tokens it has already.

        Args:
            request_number: of the session.
            num_cells: that share the quotas of the caller.
        """
        outputs = self.unfinished_outputs.items()
        return Submission(
            self.request.prompt_token_ids,
            scheduler_params(self.sampling_params),
            {index: tuple(token_ids) for index, token_ids in outputs} or None,
            request_number=request_number,
            request_id=self.request_id,
            priority=self.request.priority,
            cache_salt=self.request.cache_salt,
            traceparent=self.trail.span.context.traceparent,
            include_time_breakdown=self.request.include_time_breakdown,
            deadline_ms=self._deadline.remaining_ms,
            tenant=self.caller.name,
            tenant_weight=self.caller.weight,
            was_queued=self._was_queued,
            suspect_until=self.suspect_until,
            num_lost_alone=self.num_lost_alone,
            quotas=self.caller.quotas,
            num_cells=num_cells,
            block_source=self.block_source,
            pooling_params=self.request.pooling_params,
        )

    def mark_queued(self, seed: int, numerics_id: str = "") -> None:
        """The scheduler took the request; seed and numerics id it keeps, wherever it continues.

        Mutates: nothing when it was queued before, by a scheduler that was lost.
        """
        if self._was_queued:
            return
        self._was_queued = True
        self.numerics_id = numerics_id
        self.sampling_params = dataclasses.replace(self.sampling_params, seed=seed)
        self._start(seed)
        self.trail.queued(self.sampling_params.max_tokens)

    def _start(self, seed: int) -> None:
        request, params = self.request, self.sampling_params
        shows_prompt = request.include_prompt_token_ids
        self._start_unread = True
        self._started = Started(
            *(self.request_id, len(request.prompt_token_ids), seed, self.numerics_id),
            request.model.text_id,
            request.prompt_token_ids if shows_prompt else (),
            params.max_tokens or 0,
            structured_outputs=params.structured_outputs if shows_prompt else None,
            sampling_defaults=request.sampling_defaults,
        )
        self.unread.set()

    def push_token(
        self, sequence_index: int, token_id: int, logprobs: TokenLogprobs | None = None
    ) -> bool:
        """Take the next token of a sequence.

        Args:
            sequence_index: which sequence.
            token_id: the token.
            logprobs: at its position; given to the client only if it asked for them.

        Returns:
            Whether its text completed a stop string: the sequence has ended, and further tokens of
            it are ignored.
        """
        output = self._outputs[sequence_index]
        if output.finish_reason is not None:
            return False
        self.trail.has_token()
        stopped = output.push(token_id, logprobs)
        if len(self.request.prompt_token_ids) + len(output.token_ids) > self.suspect_until:
            self.suspect_until = self.num_lost_alone = 0  # all tokens before this are computed
        self.unread.set()
        if stopped:
            self._end_if_complete()
        if self._backlog.add() and not self.ended:
            self.owner.pause(self)
        return stopped

    def push_vector(self, vector: bytes) -> None:
        """Take the vector of the prompt, with which the request ends."""
        self._outputs[0].vector = vector

    def push_prompt_logprobs(self, first_position: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take log-probabilities of the prompt; positions that are known already are ignored."""
        num_known = len(self._prompt_logprobs) - (first_position - 1)
        self._prompt_logprobs.extend(logprobs[max(0, num_known) :])
        self.unread.set()

    def finish_sequence(self, sequence_index: int, reason: FinishReason) -> None:
        """A sequence has ended; the request ends with its last one."""
        # A beam search has none until it ends, unless it fails.
        if sequence_index < len(self._outputs):
            self._outputs[sequence_index].finish(reason)
            self.unread.set()
            self._end_if_complete()
        else:
            self.finish(reason)

    def finish_beams(self, hypotheses: Iterable[Hypothesis]) -> None:
        """A beam search has ended with these texts, best first."""
        for hypothesis in hypotheses:
            output = self._new_output()
            for position, token_id in enumerate(hypothesis.token_ids):
                logprobs = hypothesis.logprobs[position] if hypothesis.logprobs else None
                output.push(token_id, logprobs)
            output.finish(hypothesis.finish_reason)
            output.cumulative_logprob = hypothesis.cumulative_logprob
            self._outputs.append(output)
        self._close()

    def finish(self, reason: FinishReason) -> None:
        """End all sequences that go on."""
        if self.ended:
            return
        if not self._was_queued:
            # Aborted before a scheduler took it. Its stream starts all the same; without tokens,
            # any seed gives the same ones.
            self._start(self.sampling_params.seed or 0)
        for _ in range(len(self._outputs), self.sampling_params.n):  # of a beam search
            self._outputs.append(self._new_output())
        for output in self._outputs:
            output.finish(reason)
        self._close(is_told=False)

    def _end_if_complete(self) -> None:
        if not self.ended and all(output.finish_reason for output in self._outputs):
            self._close()

    def _close(self, is_told: bool = True) -> None:
        """Note that the request has ended: by its cell's report, or for another reason."""
        self.ended = True
        self.ledger.ended(is_told)
        outputs = dict(self._visible_outputs())
        try:
            for received in self._received if is_told else ():
                outputs[received.index].skip(received)
        except InvalidRequestError as error:
            self.error = error
        self.unread.set()
        reasons = dict.fromkeys(output.finish_reason for _, output in self._visible_outputs())
        self.trail.ended(
            tuple(reason.value for reason in reasons if reason), self.num_output_tokens
        )

    def fail(self, error: QuireError) -> None:
        """End the request with an error, which the client gets after what it has not read yet."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.unread.set()
        self.trail.ended((error.reason.lower(),), self.num_output_tokens)

    def drop(self) -> None:
        """The client has gone: end the request without a word to it."""
        if not self.ended:
            self.ended = True
            self.trail.ended(("client_gone",), self.num_output_tokens)

    def _visible_outputs(self) -> list[tuple[int, Output]]:
        """Return what the client may read now, with the index it knows each output by."""
        params = self.sampling_params
        if params.use_beam_search or not shows_at_end(params):
            return list(enumerate(self._outputs))
        if not self.ended or self.error is not None:
            return []
        # Equals in the order of their indices; without a token, an aborted one is no answer.
        ranked = sorted(self._outputs, key=Output.rank, reverse=True)
        return list(enumerate(ranked[: params.n]))

    def events(self) -> AsyncGenerator[Event, None]:
        """Yield them to a new reader, see StreamReader."""
        return StreamReader(self).events()

    def take_unread(self) -> list[Event]:
        """Return what is new since the last call: it is read."""
        self.unread.clear()
        events: list[Event] = []
        if self._started is not None and self._start_unread:
            events.append(self._started)
            self._start_unread, self._was_start_read = False, True
        if prompt_logprobs := self._prompt_logprobs.read():
            events.append(Delta("", (), (), 0, prompt_logprobs))
        for index, output in self._visible_outputs():
            events.extend(output.read(index, self.num_cached_tokens))
        if self._backlog.clear():
            self.owner.read_on(self)
        return events
