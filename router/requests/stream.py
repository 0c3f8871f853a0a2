"""One open request: what it has produced, and what its client has yet to read."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import structlog

from quire.contract.errors import QuireError
from quire.contract.outputs import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Hypothesis,
    Started,
    TokenLogprobs,
)
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.observe.log import get_logger
from quire.observe.tracing import Span
from router.requests.output import Output
from router.requests.spans import describe_end, describe_request
from router.requests.time_ledger import TimeLedger
from router.requests.validate import ValidGenerateRequest
from router.text.detokenize import Detokenizer

log = get_logger()


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
    ):
        """Prepare the stream of a request.

        Args:
            request: to be submitted.
            make_detokenizer: of each output.
            ledger: of its time.
            span: of the call.
        """
        self.request = request
        self.ledger = ledger
        self.span = span
        describe_request(self.span, request)
        self.sampling_params: SamplingParams = request.sampling_params
        self.was_queued = False
        self.numerics_id = ""
        self.max_model_len = 0
        self.ended = False
        self._make_detokenizer = make_detokenizer
        params = request.sampling_params
        self._outputs = [
            Output(params, make_detokenizer())
            for _ in range(0 if params.use_beam_search else params.width)
        ]
        # What the call that brought it has bound to log lines, such as whose key it came with; most
        # lines are written elsewhere, by the session that brings the tokens.
        context = structlog.contextvars.get_contextvars()
        context |= {"request_id": request.request_id, "trace_id": self.span.context.trace_id}
        self._log = log.bind(**context)
        self._first_token_s: float | None = None
        # Unread by the client, in this order; then what the outputs hold.
        self._started: list[Started] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_prompt_logprobs = 0
        self._error: QuireError | None = None
        self._unread = asyncio.Event()

    @property
    def request_id(self) -> str:
        """Id of the request, unique among those open at this router."""
        return self.request.request_id

    @property
    def unfinished_outputs(self) -> dict[int, Sequence[int]]:
        """Tokens of the sequences that go on, by index; empty if there are no tokens at all."""
        if not any(output.token_ids for output in self._outputs):
            return {}
        return {
            index: output.token_ids
            for index, output in enumerate(self._outputs)
            if output.finish_reason is None
        }

    @property
    def tokens_to_compute(self) -> Sequence[int]:
        """The prompt, and what the first sequence that goes on has added to it elsewhere."""
        prompt = self.request.prompt_token_ids
        output = next(iter(self.unfinished_outputs.values()), ())
        return (*prompt, *output) if output else prompt

    def submission(self, request_number: int) -> Submission:
        """Return what starts the request, or continues it after the tokens it has already.

        The sampling parameters are without the fields that only the router reads.
        """
        params = dataclasses.replace(
            self.sampling_params,
            stop=(),
            include_stop_str_in_output=False,
            skip_special_tokens=True,
            spaces_between_special_tokens=True,
            bad_words=(),
            truncate_prompt_tokens=None,
        )
        if params.width > params.n and params.logprobs is None:
            params = dataclasses.replace(params, logprobs=0)  # to rank the outputs by
        outputs = self.unfinished_outputs.items()
        return Submission(
            self.request.prompt_token_ids,
            params,
            {index: tuple(token_ids) for index, token_ids in outputs} or None,
            request_number=request_number,
            request_id=self.request_id,
            priority=self.request.priority,
            cache_salt=self.request.cache_salt,
            traceparent=self.span.context.traceparent,
            include_time_breakdown=self.request.include_time_breakdown,
        )

    def mark_queued(self, seed: int, numerics_id: str = "", max_model_len: int = 0) -> None:
        """The scheduler took the request; seed and numerics id it keeps, wherever it continues.

        It continues where sequences may be as long as there.

        Mutates: nothing when it was queued before, by a scheduler that was lost.
        """
        if self.was_queued:
            return
        self.was_queued = True
        self.numerics_id, self.max_model_len = numerics_id, max_model_len
        self.sampling_params = dataclasses.replace(self.sampling_params, seed=seed)
        self._start(seed)
        self._log.info(
            "request_queued",
            num_prompt_tokens=len(self.request.prompt_token_ids),
            max_tokens=self.sampling_params.max_tokens,
        )

    def _start(self, seed: int) -> None:
        num_prompt_tokens = len(self.request.prompt_token_ids)
        text_id = self.request.model.text_id
        self._started.append(
            Started(self.request_id, num_prompt_tokens, seed, self.numerics_id, text_id)
        )
        self._unread.set()

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
        if self._first_token_s is None:
            self._first_token_s = self.ledger.elapsed_s
        stopped = output.push(token_id, logprobs)
        self._unread.set()
        if stopped:
            self._end_if_complete()
        return stopped

    def push_prompt_logprobs(self, first_position: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take log-probabilities of the prompt; positions that are known already are ignored."""
        num_known = self._num_prompt_logprobs - (first_position - 1)
        new = logprobs[max(0, num_known) :]
        self._prompt_logprobs.extend(new)
        self._num_prompt_logprobs += len(new)
        self._unread.set()

    def finish_sequence(self, sequence_index: int, reason: FinishReason) -> None:
        """A sequence has ended; the request ends with its last one."""
        # A beam search has none until it ends, unless it fails.
        if sequence_index < len(self._outputs):
            self._outputs[sequence_index].finish(reason)
            self._unread.set()
            self._end_if_complete()
        else:
            self.finish(reason)

    def finish_beams(self, hypotheses: Iterable[Hypothesis]) -> None:
        """A beam search has ended with these texts, best first."""
        for hypothesis in hypotheses:
            output = Output(self.sampling_params, self._make_detokenizer())
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
        if not self.was_queued:
            # Aborted before a scheduler took it. Its stream starts all the same; without tokens,
            # any seed gives the same ones.
            self._start(self.sampling_params.seed or 0)
        for _ in range(len(self._outputs), self.sampling_params.n):  # of a beam search
            self._outputs.append(Output(self.sampling_params, self._make_detokenizer()))
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
        self._unread.set()
        reasons = dict.fromkeys(output.finish_reason for _, output in self._visible_outputs())
        self._tell_end(*(reason.value for reason in reasons if reason))

    def fail(self, error: QuireError) -> None:
        """End the request with an error, which the client gets after what it has not read yet."""
        if self.ended:
            return
        self.ended = True
        self._error = error
        self._unread.set()
        self._tell_end(error.reason.lower())

    def drop(self) -> None:
        """The client has gone: end the request without a word to it."""
        if self.ended:
            return
        self.ended = True
        self._tell_end("client_gone")

    def _tell_end(self, *finish_reasons: str) -> None:
        """Say in log and span what came of the request."""
        num_output_tokens = sum(len(output.token_ids) for output in self._outputs)
        describe_end(self.span, finish_reasons, num_output_tokens, self._first_token_s)
        latency = {"latency_ms": _ms(self.ledger.elapsed_s)}
        if self._first_token_s is not None:
            latency["first_token_ms"] = _ms(self._first_token_s)
        self._log.info(
            "request_finished",
            finish_reason=",".join(finish_reasons),
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=num_output_tokens,
            **latency,
        )

    def _visible_outputs(self) -> list[tuple[int, Output]]:
        """Return what the client may read now, with the index it knows each output by."""
        params = self.sampling_params
        if params.use_beam_search or params.width == params.n:
            return list(enumerate(self._outputs))
        if not self.ended or self._error is not None:
            return []
        # Equals in the order of their indices; without a token, an aborted one is no answer.
        ranked = sorted(
            self._outputs,
            key=lambda output: (
                output.cumulative_logprob if output.cumulative_logprob is not None else -math.inf
            ),
            reverse=True,
        )
        return list(enumerate(ranked[: params.n]))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield Started, a Delta whenever there is something new, and Finished for each output.

        Raises:
            QuireError: the request failed.
        """
        while True:
            await self._unread.wait()
            self._unread.clear()
            # All at once: what comes after a yield belongs to the next round.
            events: list[Event] = [*self._started]
            self._started.clear()
            if self._prompt_logprobs:
                events.append(Delta("", (), (), 0, tuple(self._prompt_logprobs)))
                self._prompt_logprobs.clear()
            for index, output in self._visible_outputs():
                events.extend(output.read(index))
            has_ended, error = self.ended, self._error
            last = events[-1] if has_ended and events else None
            wants_breakdown = self.request.include_time_breakdown
            for event in events:
                if event is last and isinstance(event, Finished) and wants_breakdown:
                    yield dataclasses.replace(event, time_breakdown=self.ledger.breakdown())
                else:
                    yield event
            if error is not None:
                raise error
            if has_ended:
                return


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
