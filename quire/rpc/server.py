"""The gRPC server of every service: errors, health, reflection."""

import asyncio
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from quire.contract.addresses import join_address
from quire.contract.errors import UnavailableError
from quire.observe.log import get_logger
from quire.rpc.error_interceptor import ErrorInterceptor
from quire.rpc.health_service import HealthServicer
from quire.rpc.options import MAX_MESSAGE_BYTES, server_options
from quire.rpc.protocol import ProtocolInterceptor
from quire.rpc.role_check import RoleInterceptor
from quire.rpc.tracing import TracingInterceptor
from quire.security.tls import TlsFiles

CERTIFICATE_CHECK_S = 10.0

log = get_logger()


class Server:
    """A gRPC server with health and reflection, bound to exactly the address given.

    Health reports NOT_SERVING until `set_serving(True)`.

    Args:
        service_names: full names of the services it will have.
        max_receive_bytes: longest message that is read.
        interceptors: of every call, outermost first; what they raise becomes a status, as with
            handlers.
        tls: certificate to show and authorities to trust; None speaks in the clear.
        client_certificates: whether clients must show one, whose role decides what they may call.

    Attributes:
        is_serving: what health reports.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        max_receive_bytes: int = MAX_MESSAGE_BYTES,
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        tls: TlsFiles | None = None,
        client_certificates: bool = True,
    ) -> None:
        self._tls = tls
        self._client_certificates = client_certificates
        if tls is not None and client_certificates:
            interceptors = (RoleInterceptor(), *interceptors)
        self._certificate_watch: asyncio.Task[None] | None = None
        # The error interceptor wraps the others, so that their exceptions become statuses too; the
        # tracing interceptor wraps it, since a status is part of a span.
        self.grpc_server = grpc.aio.server(
            interceptors=[
                TracingInterceptor(),
                ErrorInterceptor(),
                *interceptors,
                ProtocolInterceptor(),
            ],
            options=server_options(max_receive_bytes),
        )
        self._service_names = ("", *service_names)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        _add_reflection(
            (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc_server
        )
        self.address = ""
        self.is_serving = False

    async def start(self, host: str, port: int) -> str:
        """Bind and serve.

        Args:
            host: address to bind, and no other.
            port: 0 takes a free one.

        Returns:
            The address bound, e.g. "127.0.0.1:50051".

        Raises:
            UnavailableError: the address cannot be bound.
        """
        await self.set_serving(False)
        tls, where = self._tls, join_address(host, port)
        try:
            if tls is None:
                bound = self.grpc_server.add_insecure_port(where)
            else:
                credentials = tls.server_credentials(self._client_certificates)
                bound = self.grpc_server.add_secure_port(where, credentials)
                self._certificate_watch = asyncio.create_task(_watch(tls))
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {where}: is it in use?") from error
        await self.grpc_server.start()
        self.address = join_address(host, bound)
        log.info("listening", address=self.address, tls=tls is not None)
        return self.address

    @property
    def certificate_not_after(self) -> float | None:
        """When the certificate in use expires, in seconds since 1970; None without one."""
        return None if self._tls is None else self._tls.certificate_not_after

    async def set_serving(self, serving: bool) -> None:
        """Set what the health service answers for every service of this server."""
        self.is_serving = serving
        state = health_pb2.HealthCheckResponse.ServingStatus.Value(
            "SERVING" if serving else "NOT_SERVING"
        )
        for name in self._service_names:
            await self._health.set(name, state)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Report NOT_SERVING, refuse new calls, give running ones `grace_s`, then end them."""
        self.is_serving = False
        if self._certificate_watch is not None:
            self._certificate_watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self.grpc_server.stop(grace_s)


async def _watch(tls: TlsFiles) -> None:
    """Look at the certificate now and then, so that the log warns in time of one that expires."""
    while True:
        await asyncio.sleep(CERTIFICATE_CHECK_S)
        tls.current()


def _add_reflection(names: tuple[str, ...], server: grpc.aio.Server) -> None:
    """Serve reflection as v1alpha and as v1: same messages, but the library knows only v1alpha."""
    reflection.enable_server_reflection(names, server)
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": handler}
            ),
        )
    )
