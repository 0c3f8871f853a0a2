"""What a cell says of each request in logs and spans: by whose trace, and where its time went."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs
from quire.contract.time_account import TimeAccount
from quire.observe.log import get_logger
from quire.observe.tracing import Span, TraceContext, tracer, wall_ns
from scheduler_svc.policy.progress import GroupTime, Phase, Progress
from scheduler_svc.workers.worker_set import ExecutedStep

_SPAN_NAMES = {
    Phase.QUEUED: "queued",
    Phase.PREEMPTED: "preempted",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
}

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that has not ended.

    Attributes:
        request_id: the client's.
        trace_id: "" if its router told none.
        span: of what it does here; None unless its trace is sampled and this process records any.
    """

    request_id: str
    trace_id: str
    span: Span | None


class Traces:
    """The spans of a cell's requests, and of the steps that any sampled request is part of.

    A step belongs to many requests: it is a trace of its own, with links to theirs.
    """

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        # Of the requests that are sampled, by group.
        self._sampled: dict[int, TraceContext] = {}
        # Of the steps in flight, None for those that are not traced.
        self._steps: deque[Span | None] = deque()

    # ---------------------------------------------------------------- requests

    def refused(self, submission: Submission, reason: str) -> None:
        """A request was turned away."""
        log.debug(
            "request_refused",
            request_id=submission.request_id,
            trace_id=_trace_id(submission),
            reason=reason,
        )

    def queued(self, group_id: int, submission: Submission) -> None:
        """A request is queued."""
        num_output_tokens = sum(map(len, (submission.outputs or {}).values()))
        trace_id, span = _trace_id(submission), None
        parent = TraceContext.parse(submission.traceparent)
        if tracer().is_on and parent is not None and parent.is_sampled:
            span = tracer().start("quire.cell", parent)
            span.set("gen_ai.usage.input_tokens", len(submission.prompt_token_ids))
            span.set("quire.recovered_tokens", num_output_tokens)
            self._sampled[group_id] = span.context
        self._requests[group_id] = _Request(submission.request_id, trace_id, span)
        log.debug(
            "request_admitted",
            request_id=submission.request_id,
            trace_id=trace_id,
            num_prompt_tokens=len(submission.prompt_token_ids),
            num_output_tokens=num_output_tokens,
        )

    def told(self, progress: Progress) -> None:
        """Some requests may have ended with a step."""
        if not progress.ended_group_ids:
            return
        reasons = {each.group_id: each.finish_reason.value for each in progress.finished}
        for group_id in progress.ended_group_ids:
            self.ended(group_id, progress.times.get(group_id), reasons.get(group_id, "beam_search"))

    def ended(self, group_id: int, time: GroupTime | None, reason: str) -> None:
        """A request is over here: it ended, or nobody wants it any more.

        Args:
            group_id: of the request; one that is over already is nobody's mistake.
            time: where its time has gone; None if it had all its tokens when it came.
            reason: of its last sequence, or "beam_search".
        """
        request = self._requests.pop(group_id, None)
        if request is None:
            return
        self._sampled.pop(group_id, None)
        time = time or GroupTime(TimeAccount())
        log.debug(
            "request_ended",
            request_id=request.request_id,
            trace_id=request.trace_id,
            reason=reason,
            total_us=time.account.total_us,
            **{name: us for name, us in time.account.parts.items() if us},
        )
        if request.span is None:
            return
        for each in time.intervals:
            phase = tracer().start(
                _SPAN_NAMES[each.phase], request.span.context, start_ns=wall_ns(each.start_s)
            )
            phase.end(wall_ns(each.end_s))
        for name, us in time.account.parts.items():
            if us:
                request.span.set(f"quire.time.{name}", us)
        request.span.set("gen_ai.response.finish_reasons", [reason])
        request.span.end()

    # ---------------------------------------------------------------- steps

    @property
    def wants_steps(self) -> bool:
        """Whether any request is sampled."""
        return bool(self._sampled)

    def step_sent(self, outputs: SchedulerOutputs, group_ids: Iterable[int] = ()) -> str:
        """A step is about to be sent.

        Args:
            outputs: its orders.
            group_ids: of the requests that are part of it.

        Returns:
            What the workers are to be told of its trace; "" for nothing.
        """
        links = [self._sampled[each] for each in group_ids if each in self._sampled]
        if not links:
            self._steps.append(None)
            return ""
        span = tracer().start("quire.step", links=links)
        span.set("quire.step.num_seqs", len(outputs.sequence_ids))
        span.set("quire.step.num_tokens", sum(outputs.num_scheduled_tokens))
        self._steps.append(span)
        return span.context.traceparent if span.context.is_sampled else ""

    def step_received(self, executed: ExecutedStep) -> None:
        """The oldest step in flight has run."""
        span = self._steps.popleft()
        if span is None:
            return
        result = executed.result
        span.set("quire.step.id", result.step_id)
        span.set("quire.step.bytes", executed.step_bytes)
        span.set("quire.step.model_us", result.model_us)
        span.set("quire.step.sample_us", result.sample_us)
        span.set("quire.step.wire_us", max(0, executed.elapsed_us - result.worker_us))
        span.end()

    def steps_lost(self) -> None:
        """The workers are lost, with the steps in flight."""
        for span in self._steps:
            if span is not None:
                span.fail("workers_lost")
                span.end()
        self._steps.clear()


def _trace_id(submission: Submission) -> str:
    context = TraceContext.parse(submission.traceparent)
    return "" if context is None else context.trace_id
