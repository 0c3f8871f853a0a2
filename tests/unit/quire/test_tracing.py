"""Trace contexts as the standard has them; traces that are off, or that cannot be on."""

import subprocess
import sys

import pytest

from quire.contract.errors import ConfigError
from quire.observe import tracing
from quire.observe.log import failure_of
from quire.observe.tracing import TraceContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("flags", "is_sampled"), [("00", False), ("01", True), ("03", True), ("fe", False)]
)
def test_a_context_is_read(flags: str, is_sampled: bool) -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert context == TraceContext(TRACE, SPAN, is_sampled)


def test_a_later_version_may_have_more_fields() -> None:
    assert TraceContext.parse(f"01-{TRACE}-{SPAN}-01-more") == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01" + "0" * 10_000,
    ],
)
def test_what_is_no_context_is_ignored(text: str) -> None:
    assert TraceContext.parse(text) is None


def test_what_is_sent_can_be_read() -> None:
    for _ in range(100):
        context = TraceContext.new()
        assert not context.is_sampled
        assert TraceContext.parse(context.traceparent) == context


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    code = (
        "import sys, launch.cli.main, quire.rpc, router.server, scheduler_svc.server\n"
        "from quire.observe import tracing\n"
        "tracing.configure('router', None)\n"
        "assert not tracing.tracer().is_on\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_endpoint_without_opentelemetry_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(ConfigError, match=r"quire-serve\[traces\]"):
        tracing.configure("router", "http://127.0.0.1:4317")
    assert not tracing.tracer().is_on


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://a:1", "http://"])
def test_an_endpoint_that_is_none_is_an_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        tracing.configure("router", endpoint)


def test_a_failure_is_reported_without_its_message() -> None:
    written = "-".join(("what", "the", "client", "wrote"))
    try:
        int(written)
    except ValueError as error:
        assert written in str(error)
        reported = failure_of(error)
    assert reported["error_type"] == "ValueError"
    assert "test_tracing.py" in reported["traceback"]
    assert written not in str(reported)
