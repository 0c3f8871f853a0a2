"""The HTTP front of a router, put together from its settings."""

from collections import Counter
from collections.abc import Callable

from quire.security.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.access import HttpAccess
from router.http.app import make_app
from router.http.bodies import Bodies
from router.http.server import HttpServer
from router.requests.inference import Inference


class HttpFront:
    """Serves the HTTP APIs of a router.

    Args:
        config: of the router, with an HTTP port.
        inference: answers requests.
        keys: that are valid; None where calls need none.
        why_not_serving: returns a line while requests cannot be computed; "" while all is well.

    Attributes:
        server: that listens.
        access: knows callers.
        num_answers: so far, by route and status.
    """

    def __init__(
        self,
        config: RouterConfig,
        inference: Inference,
        keys: ApiKeys | None,
        why_not_serving: Callable[[], str],
    ) -> None:
        assert config.http_port is not None, "asked for"
        self._host, self._port = config.host, config.http_port
        self.num_answers: Counter[tuple[str, int]] = Counter()
        self.access = HttpAccess(keys)
        app = make_app(
            inference,
            self.access,
            Bodies(config.max_request_bytes, config.http_body_timeout_s),
            why_not_serving=why_not_serving,
            keep_alive_s=config.http_keep_alive_s,
            hold_s=config.grace_time_s,
            cors_origins=config.http_cors_origin,
            num_answers=self.num_answers,
        )
        # What watches the events of a request comes first, and says why it ends.
        write_timeout_s = 2 * config.stalled_reader_timeout_s
        self.server = HttpServer(app, config.tls, config.client_certificates, write_timeout_s)

    @property
    def num_requests(self) -> int:
        """Requests that have no complete answer."""
        return self.server.num_requests

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return self.server.num_connections

    async def start(self, grpc_address: str) -> str:
        """Listen, and return the address bound; arguments and errors as of `HttpServer.start`."""
        return await self.server.start(self._host, self._port, grpc_address)
