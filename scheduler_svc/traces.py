"""What a cell logs and traces of each request and step."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from quire.contract.sessions import Submission
from quire.contract.steps import SchedulerOutputs
from quire.contract.time_breakdown import TimeBreakdown
from quire.observe.log import get_logger
from quire.observe.tracing import Span, TraceContext, tracer, wall_ns
from scheduler_svc.policy.progress import GroupTime, Phase, Progress
from scheduler_svc.workers.executed_step import ExecutedStep

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
        trace_id: "" for none.
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
        # Spans of the sampled requests, by group.
        self._sampled: dict[int, TraceContext] = {}
        # Spans of the steps in flight, None for those that are not traced.
        self._steps: deque[Span | None] = deque()

    # ---------------------------------------------------------------- requests

    def record_refused(self, submission: Submission, reason: str) -> None:
        """Log that a request was refused."""
        log.debug(
            "request_refused",
            request_id=submission.request_id,
            trace_id=_trace_id(submission),
            reason=reason,
        )

    def record_queued(self, group_id: int, submission: Submission) -> None:
        """Log that a request is queued, and begin its span if its trace is sampled."""
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
            "request_queued",
            request_id=submission.request_id,
            trace_id=trace_id,
            num_prompt_tokens=len(submission.prompt_token_ids),
            num_output_tokens=num_output_tokens,
        )

    def record_progress(self, progress: Progress) -> None:
        """Log the ends of the requests that ended with a step."""
        if not progress.ended_group_ids:
            return
        reasons = {each.group_id: each.finish_reason.value for each in progress.finished}
        for group_id in progress.ended_group_ids:
            self.record_end(
                group_id, progress.times.get(group_id), reasons.get(group_id, "beam_search")
            )

    def record_end(self, group_id: int, time: GroupTime | None, reason: str) -> None:
        """Log the end of a request, and end its span; no effect if that has been done.

        Args:
            group_id: of the request.
            time: where its time has gone; None if it had all its tokens when it came.
            reason: of its last sequence, or "beam_search".
        """
        request = self._requests.pop(group_id, None)
        if request is None:
            return
        self._sampled.pop(group_id, None)
        time = time or GroupTime(TimeBreakdown())
        log.debug(
            "request_ended",
            request_id=request.request_id,
            trace_id=request.trace_id,
            reason=reason,
            total_us=time.breakdown.total_us,
            **{name: us for name, us in time.breakdown.parts.items() if us},
        )
        if request.span is None:
            return
        for each in time.intervals:
            phase = tracer().start(
                _SPAN_NAMES[each.phase], request.span.context, start_ns=wall_ns(each.start_s)
            )
            phase.end(wall_ns(each.end_s))
        for name, us in time.breakdown.parts.items():
            if us:
                request.span.set(f"quire.time.{name}", us)
        request.span.set("gen_ai.response.finish_reasons", [reason])
        request.span.end()

    def log_quarantined(self, group_id: int) -> None:
        """Log that workers are lost at a request, before its end is recorded."""
        request = self._requests[group_id]
        log.error("request_quarantined", request_id=request.request_id, trace_id=request.trace_id)

    # ---------------------------------------------------------------- steps

    @property
    def wants_steps(self) -> bool:
        """Whether any request is sampled."""
        return bool(self._sampled)

    def start_step(self, outputs: SchedulerOutputs, group_ids: Iterable[int] = ()) -> str:
        """Begin the span of a step that is about to be sent, if any of its requests is sampled.

        Args:
            outputs: its orders.
            group_ids: of the requests that are part of it.

        Returns:
            W3C Trace Context of the span, for the workers; "" for none.
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

    def end_step(self, executed: ExecutedStep) -> None:
        """End the span of the oldest step in flight."""
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

    def fail_steps(self) -> None:
        """End the spans of all steps in flight: the workers are lost."""
        for span in self._steps:
            if span is not None:
                span.fail("workers_lost")
                span.end()
        self._steps.clear()


def _trace_id(submission: Submission) -> str:
    context = TraceContext.parse(submission.traceparent)
    return "" if context is None else context.trace_id
