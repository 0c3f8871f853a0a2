"""A server with every RPC of the protos, each of which answers; and certificates for its peers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc

from launch.authority import Authority, CertificateDirectory
from quire.rpc import Server, TlsFiles
from quire.v1 import cluster_pb2, inference_pb2, scheduler_pb2, worker_pb2

SERVICES = [
    service
    for file in (cluster_pb2, inference_pb2, scheduler_pb2, worker_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
METHODS = sorted(
    f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods
)
LIST_MODELS = "/quire.v1.InferenceService/ListModels"
WATCH_CLUSTER = "/quire.v1.InferenceService/WatchCluster"


class Answering:
    """Handlers that send a message, and end when the test lets them.

    Attributes:
        may_end: until then the stream of WatchCluster goes on.
        peers: the certificate of each caller, PEM.
    """

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.peers: list[bytes] = []

    async def answer(self, requests: object, context: grpc.aio.ServicerContext) -> None:
        self.peers += context.auth_context().get("x509_pem_cert", [b""])
        await context.write(b"")

    async def stream(self, requests: object, context: grpc.aio.ServicerContext) -> None:
        await self.answer(requests, context)
        await self.may_end.wait()
        await context.write(b"")

    def add_to(self, server: Server) -> None:
        for service in SERVICES:
            behaviors = {
                method.name: self.stream if method.name == "WatchCluster" else self.answer
                for method in service.methods
            }
            handlers = {
                name: grpc.stream_stream_rpc_method_handler(behavior)
                for name, behavior in behaviors.items()
            }
            server.grpc_server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.full_name, handlers),)
            )


@asynccontextmanager
async def secure_server(
    tls: TlsFiles | None, client_certificates: bool = True
) -> AsyncIterator[tuple[str, Answering]]:
    """A server on a free port; its address and its handlers."""
    names = [service.full_name for service in SERVICES]
    server = Server(names, tls=tls, client_certificates=client_certificates)
    answering = Answering()
    answering.add_to(server)
    address = await server.start("127.0.0.1", 0)
    await server.set_serving(True)
    try:
        yield address, answering
    finally:
        await server.stop(grace_s=0)


async def call(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError | None:
    """Make a call; return how it failed, None if it did not."""
    running = channel.unary_stream(method)(b"", timeout=20)
    try:
        async for _ in running:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        running.cancel()
    return None


def make_certificates(directory: Path) -> CertificateDirectory:
    """A new authority with a certificate for each role."""
    certificates = CertificateDirectory(directory)
    certificates.create()
    return certificates


def write_pair(
    directory: Path,
    authority: Authority,
    role: str,
    trusted: Path,
    days: float = 1.0,
    now: datetime | None = None,
) -> Path:
    """Write the three files of a process that trusts the roots in the file `trusted`."""
    directory.mkdir(parents=True)
    certificate, key = authority.issue(role, days=days, now=now or datetime.now(UTC))
    (directory / "ca.crt").write_bytes(trusted.read_bytes())
    (directory / "tls.crt").write_bytes(certificate)
    (directory / "tls.key").write_bytes(key)
    return directory
