"""The HTTP front of a router, put together from its settings."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from quire.security.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.access import HttpAccess
from router.http.app import make_app
from router.http.bodies import Bodies
from router.http.endpoint import BodyDefaults
from router.http.info import tokenizer_info
from router.http.known_fields import UnknownFields
from router.http.server import HttpServer
from router.http.tls import file_context, server_context
from router.requests.inference import Inference


class HttpFront:
    """Serves the HTTP APIs of a router.

    Args:
        config: of the router, with an HTTP port.
        inference: answers requests.
        keys: that are valid; None where calls need none.
        why_not_serving: returns a line while requests cannot be computed; "" while all is well.
        metrics: returns those of the router, as Prometheus reads them.
        chat_template: in use; None for none.

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
        metrics: Callable[[], bytes],
        chat_template: str | None,
    ) -> None:
        self._config = config
        self.num_answers: Counter[tuple[str, int]] = Counter()
        self._unknown_fields = UnknownFields()
        self.access = HttpAccess(keys)
        app = make_app(
            inference,
            self.access,
            Bodies(config.max_request_bytes, config.http_body_timeout_s),
            why_not_serving=why_not_serving,
            keep_alive_s=config.sse_keep_alive_interval or math.inf,
            hold_s=config.grace_time_s,
            cors_origins=config.http_cors_origin,
            root_path=config.root_path.rstrip("/"),
            body_defaults=BodyDefaults(
                config.enable_force_include_usage, config.return_tokens_as_token_ids
            ),
            metrics=metrics,
            tokenizer=tokenizer_info(Path(config.model), chat_template),
            num_answers=self.num_answers,
            unknown_fields=self._unknown_fields,
        )
        # What watches the events of a request comes first, and says why it ends.
        write_timeout_s = 2 * config.stalled_reader_timeout_s
        has_roles, tls = False, None
        if config.ssl_certfile is not None:
            tls = file_context(config)
        elif config.tls is not None:
            has_roles = config.client_certificates
            tls = server_context(config.tls, has_roles)
        self.server = HttpServer(app, tls, has_roles, write_timeout_s)

    @property
    def num_unknown_fields(self) -> Mapping[tuple[str, str], int]:
        """Fields of bodies so far that no API knows, by route and name."""
        return self._unknown_fields.counts

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
        config = self._config
        if config.uds:
            return await self.server.start_unix(config.uds, grpc_address)
        assert config.http_port is not None, "asked for"
        return await self.server.start(config.host, config.http_port, grpc_address)
