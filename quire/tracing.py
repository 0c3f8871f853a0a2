"""W3C Trace Context: by what one request is known in the logs and spans of every service."""

import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
# https://www.w3.org/TR/trace-context/#version
_INVALID_VERSION = "ff"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Of a span that others continue.

    Attributes:
        trace_id: 32 hexadecimal digits, not all zero.
        span_id: 16 hexadecimal digits, not all zero.
        is_sampled: whether spans of this trace are recorded.
    """

    trace_id: str
    span_id: str
    is_sampled: bool = False

    @classmethod
    def new(cls) -> "TraceContext":
        """Return the context of a trace that begins here, and that nobody records."""
        # Zero would mean that there is none.
        trace_id, span_id = 1 + secrets.randbelow(2**128 - 1), 1 + secrets.randbelow(2**64 - 1)
        return cls(f"{trace_id:032x}", f"{span_id:016x}")

    @classmethod
    def parse(cls, traceparent: str) -> "TraceContext | None":
        """Read what a peer sent; None for what is no trace context, which the standard ignores."""
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == _INVALID_VERSION or (version == "00" and more):
            return None
        if not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    @property
    def traceparent(self) -> str:
        """What is sent to a peer."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"
