"""What a request leaves in log and trace."""

import structlog

from quire.observe.log import get_logger
from quire.observe.tracing import Span
from router.requests.spans import describe_end, describe_request
from router.requests.time_ledger import TimeLedger
from router.requests.validate import ValidGenerateRequest

log = get_logger()


class Trail:
    """Writes the log lines of a request and the attributes of its span.

    Args:
        request: that has come.
        span: of its call.
        ledger: of its time.

    Attributes:
        span: of the call that has it now.
    """

    def __init__(self, request: ValidGenerateRequest, span: Span, ledger: TimeLedger) -> None:
        self.span = span
        describe_request(span, request)
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._ledger = ledger
        # What the call that brought it has bound to log lines, such as whose key it came with; most
        # lines are written elsewhere, by the session that brings the tokens.
        context = structlog.contextvars.get_contextvars()
        context |= {"request_id": request.request_id, "trace_id": span.context.trace_id}
        self._log = log.bind(**context)
        self._first_token_s: float | None = None

    def goes_on_in(self, newer: "Trail") -> None:
        """Another call has the request now."""
        self.span, self._log = newer.span, newer._log

    def queued(self, max_tokens: int | None) -> None:
        """A scheduler has taken it."""
        self._log.info(
            "request_queued", num_prompt_tokens=self._num_prompt_tokens, max_tokens=max_tokens
        )

    def has_token(self) -> None:
        """There is a token; the first one counts."""
        if self._first_token_s is None:
            self._first_token_s = self._ledger.elapsed_s

    def left(self, num_output_tokens: int, grace_time_s: float) -> None:
        """The client of the call has gone; the request runs on for a while."""
        describe_end(self.span, ("client_gone",), num_output_tokens, self._first_token_s)
        self._log.info("client_gone", grace_time_s=grace_time_s)

    def ended(self, finish_reasons: tuple[str, ...], num_output_tokens: int) -> None:
        """Say what came of it.

        Args:
            finish_reasons: of its outputs, or what it failed with.
            num_output_tokens: over all outputs.
        """
        describe_end(self.span, finish_reasons, num_output_tokens, self._first_token_s)
        latency = {"latency_ms": _ms(self._ledger.elapsed_s)}
        if self._first_token_s is not None:
            latency["first_token_ms"] = _ms(self._first_token_s)
        self._log.info(
            "request_finished",
            finish_reason=",".join(finish_reasons),
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            **latency,
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
