"""The pages of a service's admin port."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire.observe.admin import AdminServer, Page, verdict
from quire.observe.metrics.runtime import RuntimeCollector


class ServiceAdmin:
    """The admin port of a service: /metrics, /metrics/vllm, /livez and /readyz.

    Args:
        service: "router", "scheduler" or "worker".
        metrics: of the service.
        aliases: the metrics that vLLM has a name for, under that name; None if there are none.
        is_ready: returns what the service's health reports.
        why_stuck: why the process should be started again; empty if it should not.
        certificate_expiry: seconds since 1970 at which its certificate ends, None without one.
        why_not_ready: returns a line for who asks while it is not ready; empty if nothing is known.
    """

    def __init__(
        self,
        service: str,
        metrics: Collector,
        aliases: Collector | None,
        is_ready: Callable[[], bool],
        why_stuck: Callable[[], str] = lambda: "",
        certificate_expiry: Callable[[], float | None] = lambda: None,
        why_not_ready: Callable[[], str] = lambda: "",
    ) -> None:
        self._runtime = RuntimeCollector(service, is_ready, certificate_expiry)
        all_metrics = _Together((metrics, self._runtime))
        self._server = AdminServer(
            {
                "/metrics": lambda: _exposition(all_metrics),
                "/metrics/vllm": lambda: _exposition(aliases or _Together(())),
                "/livez": lambda: verdict(why_stuck()),
                "/readyz": lambda: verdict("" if is_ready() else _not_serving(why_not_ready())),
            }
        )

    async def start(self, port: int, host: str = "127.0.0.1") -> str:
        """Listen, and return the address bound; arguments as of `AdminServer.start`.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        address = await self._server.start(port, host)
        self._runtime.start()
        return address

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()
        await self._runtime.stop()


class _Together(Collector):
    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)

    def collect(self) -> Iterator[Metric]:
        for each in self._collectors:
            yield from each.collect()


def _not_serving(reason: str) -> str:
    return f"not serving: {reason}" if reason else "not serving"


def _exposition(collector: Collector) -> Page:
    return Page(generate_latest(collector), content_type=CONTENT_TYPE_PLAIN_0_0_4)
