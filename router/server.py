"""The router process: a public gRPC server, a tokenizer, and a session with every scheduler."""

import asyncio
import gc
import signal
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from quire.contract.errors import QuireError, UnavailableError
from quire.observe import log as quire_log
from quire.observe.log import get_logger
from quire.rpc import Server, announce, fail, report, stop_signal, until_stopped
from quire.rpc.access import ApiKeyInterceptor
from quire.security.api_keys import ApiKeys
from quire.v1 import inference_pb2_grpc
from router.cells.pool import CellPool
from router.chat.parsers.formats import choose_format
from router.chat.prompts import ChatPrompts
from router.chat.template import ChatTemplate
from router.chat.template_files import ChatTemplates
from router.config import RouterConfig
from router.facades import services as facades
from router.generation_config import load_generation_defaults
from router.memory import return_large_blocks
from router.requests.counters import Counters
from router.requests.inference import Inference
from router.requests.orphans import Orphans
from router.requests.validate import Validator
from router.servicer import InferenceServicer
from router.text.grammars import GrammarChecks
from router.text.tokenize import Tokenizer

if TYPE_CHECKING:
    from quire.observe.metrics.pages import ServiceAdmin
    from router.http.front import HttpFront
    from router.metrics import RouterAliases, RouterCollector

SERVICE_NAME = "quire.v1.InferenceService"
DRAIN_LOOK_INTERVAL_S = 0.05
# How long a start waits for a scheduler.
START_WAIT_S = 10.0

log = get_logger()


class Router:
    """A running router. Health reports SERVING while a scheduler is connected.

    Attributes:
        orphans: its requests whose client is gone.
        inference: what it does for its clients.
        http_address: where its HTTP port is; "" if it has none, or does not listen yet.
    """

    def __init__(
        self, config: RouterConfig, tokenizer: Tokenizer, template: ChatTemplate | None = None
    ):
        """Prepare a router.

        Args:
            config: its settings.
            tokenizer: of the model; closed with the router.
            template: for conversations, likewise; None for a model that has none.

        Raises:
            ConfigError: the file of API keys, or the generation config, cannot be read.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._template = template or ChatTemplate(ChatTemplates(), config.max_prompt_bytes)
        self._cells = CellPool(config, tokenizer.text_id)
        self.orphans = Orphans(self._cells, config.grace_time_s)
        self._counters = Counters()
        self._admin: ServiceAdmin | None = None
        self._grammars = GrammarChecks(
            tokenizer.as_json, tokenizer.text_id, self._cells.statuses, config.max_queued_texts
        )
        validator = Validator(
            *(tokenizer, self._cells.find_model, config.max_prompt_bytes),
            self._grammars.check,
            load_generation_defaults(
                Path(config.model), config.generation_config, config.generation_overrides
            ),
        )
        output_format = choose_format(
            config.tool_call_parser, config.reasoning_parser, self._template.sources
        )
        self.inference = Inference(
            validator,
            tokenizer,
            ChatPrompts(self._template, tokenizer, output_format, config.template_kwargs),
            self._cells,
            self.orphans,
            self._counters,
            config.stalled_reader_timeout_s,
            output_format,
        )
        needs_keys = config.api_keys is not None or config.api_key
        self._api_keys = ApiKeys(config.api_keys, config.api_key) if needs_keys else None
        self._access = ApiKeyInterceptor(self._api_keys) if self._api_keys else None
        self._server = Server(
            [SERVICE_NAME, *facades.SERVICE_NAMES],
            config.max_request_bytes,
            interceptors=[self._access] if self._access else [],
            tls=config.tls,
            client_certificates=config.client_certificates,
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(self.inference, self._cells),
            self._server.grpc_server,
        )
        self._http: HttpFront | None = None
        if config.http_port is not None or config.uds:
            # Not at the top: routers without it would be slower to start.
            from router.http import front

            self._http = front.HttpFront(
                *(config, self.inference, self._api_keys, self._why_not_serving),
                self._metrics,
                next(iter(self._template.sources), None),
            )
        self.http_address = ""
        facades.add_facades(
            *(self._server.grpc_server, self.inference, self._cells),
            is_serving=lambda: self._server.is_serving,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    async def start_admin(self, port: int, host: str = "127.0.0.1") -> str:
        """Serve metrics and probes; return the address bound.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        from quire.observe.metrics.pages import ServiceAdmin

        self._admin = ServiceAdmin(
            "router",
            *self._collectors(),
            is_ready=lambda: self._server.is_serving,
            why_not_ready=lambda: self._cells.why_not_serving,
            certificate_expiry=lambda: self._server.certificate_not_after,
        )
        return await self._admin.start(port, host)

    def _collectors(self) -> "tuple[RouterCollector, RouterAliases]":
        from router.metrics import RouterAliases, RouterCollector

        own = RouterCollector(
            self._counters, self._cells, self.orphans, self._num_unauthenticated, self._http
        )
        return own, RouterAliases(self._counters)

    def _metrics(self) -> bytes:
        """Return the metrics, under our names and under vLLM's."""
        from prometheus_client.exposition import generate_latest

        return b"".join(generate_latest(each) for each in self._collectors())

    def _num_unauthenticated(self) -> int:
        num_over_http = self._http.access.num_refused if self._http else 0
        return num_over_http + (self._access.num_refused if self._access else 0)

    def _why_not_serving(self) -> str:
        return "draining" if self._draining else self._cells.why_not_serving

    async def start(self) -> str:
        """Listen, begin to connect, and return the address bound for gRPC.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        address = await self._server.start(self._config.host, self._config.port)
        if self._http is not None:
            try:
                self.http_address = await self._http.start(address)
            except UnavailableError:
                await self._server.stop()
                raise
        self._cells.start()
        self._tasks.append(asyncio.create_task(self._follow_health()))
        if self._api_keys is not None:
            self._tasks.append(asyncio.create_task(self._api_keys.follow()))
        return address

    async def run(self) -> None:
        """Raise what ends a part of the router, as nothing should before it is stopped."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def wait_until_serving(self) -> None:
        """Return when a scheduler is connected."""
        async with aclosing(self._cells.watch()) as watch:
            async for _ in watch:
                if not self._cells.why_not_serving:
                    return

    async def _follow_health(self) -> None:
        serving = False
        async with aclosing(self._cells.watch()) as watch:
            async for _ in watch:
                if self._draining:
                    return
                is_connected = not self._cells.why_not_serving
                if is_connected != serving:
                    serving = is_connected
                    await self._server.set_serving(serving)

    async def drain(self) -> None:
        """Report NOT_SERVING, take new requests a little longer, then finish what there is.

        Clients and load balancers that follow health notice late; until then a refusal would be an
        error that a user sees. After that the server sends GOAWAY, upon which HTTP/2 clients go
        elsewhere with their next request by themselves.
        """
        self._draining = True
        await self._server.set_serving(False)
        log.info("draining", open_requests=self._counters.num_open)
        await asyncio.sleep(self._config.drain_delay_s)
        self.orphans.stop()  # it takes no call from their clients any more
        # Ends when all calls have: also those that watch, and need not be waited for.
        refusing = asyncio.gather(
            self._server.stop(self._config.drain_timeout_s),
            self._http.server.stop(self._config.drain_timeout_s) if self._http else _nothing(),
        )
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                # Calls that are not with a cell yet, such as those whose text is being tokenized,
                # and those whose last message is on its way.
                while self._num_open:
                    await asyncio.sleep(DRAIN_LOOK_INTERVAL_S)
        except TimeoutError:
            log.warning("drain_timed_out", open_requests=self._counters.num_open)
        finally:
            refusing.cancel()
            await asyncio.gather(refusing, return_exceptions=True)

    @property
    def _num_open(self) -> int:
        num_http_requests = self._http.num_requests if self._http else 0
        num_vector_calls = len(self.inference.vector_calls)
        return sum(
            (
                self._counters.num_open,
                len(self._cells.requests),
                num_vector_calls,  # their requests may all wait to be sent again
                num_http_requests,
            )
        )

    async def stop(self) -> None:
        """Refuse new requests, give running ones a moment, end them, and close the sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.orphans.stop()
        if self._http is not None:
            await self._http.server.stop()
        await self._server.stop()
        await self._cells.stop()
        if self._admin is not None:
            await self._admin.stop()
        self._tokenizer.close()
        await self._template.close()
        await self._grammars.close()


async def _nothing() -> None:
    """Do nothing: there is no HTTP port to stop."""


async def serve(config: RouterConfig, ready_fd: int | None) -> int:
    """Run a router until SIGINT, or until SIGTERM has drained it.

    Args:
        config: its settings.
        ready_fd: pipe on which to report to the parent process how the start went.

    Returns:
        The exit status of the process.
    """
    quire_log.configure("router", config.log_level, config.log_format)
    return_large_blocks()
    try:
        tokenizer = await Tokenizer.load(
            config.model, config.tokenizer_threads, config.max_queued_texts
        )
        template = await ChatTemplate.load(
            config.model, config.chat_template, config.max_prompt_bytes, config.max_queued_texts
        )
        # A collection that visits all modules and the tokenizer keeps every stream waiting.
        gc.freeze()
        router = Router(config, tokenizer, template)
        if config.admin_port is not None:
            address = await router.start_admin(config.admin_port, config.admin_host)
            report(ready_fd, f"admin {address}")
        address = await router.start()
        if router.http_address:
            report(ready_fd, f"http {router.http_address}")
    except QuireError as error:
        return fail(error, ready_fd)
    stopped = asyncio.create_task(until_stopped(router.run()))
    serving = asyncio.create_task(router.wait_until_serving())
    try:
        done, _ = await asyncio.wait(
            {stopped, serving}, timeout=START_WAIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not done and ready_fd is None:
            # Not fatal: a scheduler may start after its routers. Until then health reports
            # NOT_SERVING.
            log.warning(
                "no_scheduler_yet",
                addresses=[*config.scheduler_addresses, *config.scheduler_dns],
            )
        announce(ready_fd, f"ready {address}")
        if await stopped is signal.SIGTERM:
            draining = asyncio.create_task(router.drain())
            # A second signal ends the wait.
            stopped = asyncio.create_task(stop_signal())
            await asyncio.wait({stopped, draining}, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
    finally:
        serving.cancel()
        stopped.cancel()
        await router.stop()
    return 0
