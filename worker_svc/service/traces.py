"""Logs and spans of a worker's requests and steps."""

import time

from quire.contract.steps import SchedulerOutputs, StepResult
from quire.observe.log import get_logger
from quire.observe.tracing import TraceContext, tracer

log = get_logger()


def log_new_sequences(outputs: SchedulerOutputs) -> None:
    """Log the requests whose sequences a step adds; a sequence that is resumed is added again."""
    for state in outputs.new_sequences:
        trace = TraceContext.parse(state.traceparent)
        log.debug(
            "sequence_added",
            trace_id="" if trace is None else trace.trace_id,
            step_id=outputs.step_id,
            sequence_id=state.sequence_id,
            num_tokens=len(state.token_ids),
            num_computed_tokens=state.num_computed_tokens,
        )


def record_step(traceparent: str, num_tokens: int, result: StepResult) -> None:
    """Record the spans of a step that has just ended, if its scheduler records one.

    Args:
        traceparent: W3C Trace Context of the scheduler's span; "" for none.
        num_tokens: tokens that the step computed.
        result: result of the step; its times are those of the spans, which end now.
    """
    parent = TraceContext.parse(traceparent)
    if parent is None or not tracer().is_on:
        return
    end_ns = time.time_ns()
    sampling_ns = end_ns - 1000 * result.sample_us
    start_ns = end_ns - 1000 * max(result.worker_us, result.model_us + result.sample_us)
    step = tracer().start("quire.worker.step", parent, start_ns=start_ns)
    step.set("quire.step.id", result.step_id)
    step.set("quire.step.num_tokens", num_tokens)
    if result.swap_us:
        step.set("quire.step.swap_us", result.swap_us)
    computing_ns = sampling_ns - 1000 * result.model_us
    tracer().start("model", step.context, start_ns=computing_ns).end(sampling_ns)
    tracer().start("sample", step.context, start_ns=sampling_ns).end(end_ns)
    step.end(end_ns)
