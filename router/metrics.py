"""A router's metrics for Prometheus, read from its counters when they are asked for."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire.contract.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    QuireError,
    ReaderStalledError,
    RequestExistsError,
    UnavailableError,
)
from quire.contract.outputs import CellStatus, FinishReason
from quire.observe.metrics.families import counter, gauge, histogram
from quire.observe.metrics.histogram import Histogram
from router.cells.pool import CellPool
from router.cells.submission import SubmissionReason
from router.requests.counters import Counters, Latencies, RequestOutcome
from router.requests.orphans import Orphans

# Errors that a Generate call may end with, so that their series are there before the first.
_ERRORS = tuple(
    (error.code, error.reason)
    for error in (
        InvalidRequestError,
        ModelNotFoundError,
        RequestExistsError,
        OverloadedError,
        ReaderStalledError,
        UnavailableError,
        QuireError,
    )
)
_CELL_STATES = ("up", "without_workers", "draining", "disconnected")


class HttpActivity(Protocol):
    """What an HTTP port does."""

    @property
    def num_answers(self) -> Mapping[tuple[str, int], int]:
        """Answers so far, by route and status."""

    @property
    def num_unknown_fields(self) -> Mapping[tuple[str, str], int]:
        """Fields of bodies so far that no API knows, by route and name."""

    @property
    def num_requests(self) -> int:
        """Requests that have no complete answer."""

    @property
    def num_connections(self) -> int:
        """Connections that are open."""


class RouterCollector(Collector):
    """The metrics of a router.

    Args:
        counters: of its requests.
        cells: that it knows.
        orphans: requests that run on without a client.
        num_unauthenticated: returns how many calls were refused for want of a key.
        http: its HTTP port; None if it has none.
    """

    def __init__(
        self,
        counters: Counters,
        cells: CellPool,
        orphans: Orphans,
        num_unauthenticated: Callable[[], int] = lambda: 0,
        http: HttpActivity | None = None,
    ) -> None:
        self._counters = counters
        self._cells = cells
        self._orphans = orphans
        self._num_unauthenticated = num_unauthenticated
        self._http = http

    def collect(self) -> Iterator[Metric]:
        """Yield the families; of each model, series begin with its first request."""
        yield from self._requests()
        yield from _latencies(self._counters)
        yield from self._choices()
        yield from _http_activity(self._http)

    def _requests(self) -> Iterator[Metric]:
        counters = self._counters
        # What could have become of a request whose model was not looked up yet.
        unknown = ("", RequestOutcome.REFUSED), ("", RequestOutcome.CANCELLED)
        known = ((model, outcome) for model in counters.latencies for outcome in RequestOutcome)
        yield counter(
            "quire_router_requests_total",
            "Generate calls that have ended, by how; without a model where none was found.",
            {
                (model, outcome.value): counters.requests[model, outcome]
                for model, outcome in (*unknown, *known)
            },
            ("model", "outcome"),
        )
        yield counter(
            "quire_router_errors_total",
            "Generate calls that ended with an error, by status and reason.",
            dict.fromkeys(_ERRORS, 0) | counters.errors,
            ("code", "reason"),
        )
        yield counter(
            "quire_router_unauthenticated_total",
            "Calls of any kind refused for want of a valid API key.",
            self._num_unauthenticated(),
        )
        yield counter(
            "quire_router_outputs_total",
            "Outputs that have ended; a request has n of them.",
            {
                (model, reason.value): counters.outputs[model, reason]
                for model in counters.latencies
                for reason in FinishReason
            },
            ("model", "finish_reason"),
        )
        yield counter(
            "quire_router_prompt_tokens_total",
            "Tokens of the prompts of requests that a scheduler took.",
            {(model,): counters.prompt_tokens[model] for model in counters.latencies},
            ("model",),
        )
        yield counter(
            "quire_router_output_tokens_total",
            "Tokens sent to clients.",
            {(model,): counters.output_tokens[model] for model in counters.latencies},
            ("model",),
        )
        yield counter(
            "quire_router_key_requests_total",
            "Generate calls that have ended, by the name of their API key.",
            {(key,): number for key, number in counters.key_requests.items()},
            ("key",),
        )
        yield counter(
            "quire_router_key_tokens_total",
            "Tokens of prompts and outputs, by the name of the API key.",
            {
                (key, kind): number
                for kind, tokens in (
                    ("prompt", counters.key_prompt_tokens),
                    ("output", counters.key_output_tokens),
                )
                for key, number in tokens.items()
            },
            ("key", "kind"),
        )
        yield gauge("quire_router_open_requests", "Generate calls under way.", counters.num_open)
        yield gauge(
            "quire_router_waiting_requests",
            "Requests that wait at the router, with no cell to run in.",
            self._cells.num_waiting,
        )
        yield gauge(
            "quire_router_paused_requests",
            "Requests that run nowhere since their clients do not read.",
            len(self._cells.paused),
        )
        yield gauge(
            "quire_router_orphans",
            "Requests whose clients are gone and may come back.",
            len(self._orphans),
        )
        num_resumed = self._cells.submissions[SubmissionReason.RESUMED]
        num_by_prefix = self._cells.num_resumed_by_prefix
        yield counter(
            "quire_router_resumes_total",
            "Resume calls whose request still ran here, and others, by what is computed again.",
            {
                ("attached",): self._orphans.num_attached,
                ("prefix_cached",): num_by_prefix,
                ("recomputed",): num_resumed - num_by_prefix,
            },
            ("path",),
        )

    def _choices(self) -> Iterator[Metric]:
        cells = self._cells
        yield counter(
            "quire_router_submissions_total",
            "Requests handed to cells: new ones, and again after a full queue, lost cell or pause.",
            {(reason.value,): cells.submissions[reason] for reason in SubmissionReason},
            ("reason",),
        )
        yield counter(
            "quire_router_placements_total",
            "Choices of a cell: one expected to hold part of the prompt, or by load alone.",
            {
                ("prefix",): sum(each.num_placed_by_prefix for each in cells.choices),
                ("load",): sum(each.num_placed_by_load for each in cells.choices),
            },
            ("by",),
        )
        states = Counter(_state_of(each) for each in cells.statuses())
        yield gauge(
            "quire_router_cells",
            "Cells that the router knows.",
            {(state,): states[state] for state in _CELL_STATES},
            ("state",),
        )


def _http_activity(http: HttpActivity | None) -> Iterator[Metric]:
    answers = http.num_answers if http else {}
    yield counter(
        "quire_router_http_requests_total",
        "Requests over HTTP that were answered, or whose clients went away, by status.",
        {(route, str(status)): number for (route, status), number in answers.items()},
        ("route", "status"),
    )
    unknown = http.num_unknown_fields if http else {}
    yield counter(
        "quire_router_http_unknown_fields_total",
        "Fields of requests over HTTP that no API knows, and nothing obeys.",
        unknown,
        ("route", "field"),
    )
    yield gauge(
        "quire_router_http_open_requests",
        "Requests over HTTP that have no complete answer.",
        http.num_requests if http else 0,
    )
    yield gauge(
        "quire_router_http_connections",
        "Connections of the HTTP port.",
        http.num_connections if http else 0,
    )


def _state_of(cell: CellStatus) -> str:
    if not cell.connected:
        return "disconnected"
    if cell.state.draining:
        return "draining"
    return "without_workers" if cell.state.workers_lost else "up"


# (name, what it is, whose time) of each histogram.
_LATENCIES: tuple[tuple[str, str, Callable[[Latencies], Histogram]], ...] = (
    (
        "quire_router_queue_seconds",
        "From a call to the moment a scheduler has taken it.",
        lambda each: each.queue,
    ),
    (
        "quire_router_time_to_first_token_seconds",
        "From a call to the first message with tokens.",
        lambda each: each.first_token,
    ),
    (
        "quire_router_inter_token_seconds",
        "From a message with tokens to the next of the same request.",
        lambda each: each.between_tokens,
    ),
    (
        "quire_router_request_seconds",
        "From a call to the end of its last output, of those that finished.",
        lambda each: each.whole,
    ),
)


def _latencies(counters: Counters) -> Iterator[Metric]:
    for name, documentation, pick in _LATENCIES:
        series = {(model,): pick(each) for model, each in counters.latencies.items()}
        yield histogram(name, documentation, series, ("model",))


class RouterAliases(Collector):
    """What vLLM has a name for, under that name.

    Args:
        counters: of the router's requests.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        counters = self._counters
        # vLLM's reasons: NO_TOKEN is an "error" there.
        outputs = Counter[tuple[str, str]]()
        for model in counters.latencies:
            for reason in FinishReason:
                outputs[model, reason.shown] += counters.outputs[model, reason]
        yield counter(
            "vllm:request_success_total",
            "Outputs that have ended.",
            outputs,
            ("model_name", "finished_reason"),
        )
        for name, documentation, tokens in (
            ("prompt_tokens_total", "Tokens of prompts.", counters.prompt_tokens),
            ("generation_tokens_total", "Tokens sent to clients.", counters.output_tokens),
        ):
            series = {(model,): tokens[model] for model in counters.latencies}
            yield counter(f"vllm:{name}", documentation, series, ("model_name",))
        names = (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
        )
        for name, (_, documentation, pick) in zip(names, _LATENCIES[1:], strict=True):
            latencies = {(model,): pick(each) for model, each in counters.latencies.items()}
            yield histogram(f"vllm:{name}", documentation, latencies, ("model_name",))
