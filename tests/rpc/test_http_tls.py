"""The HTTP port has the certificate of the gRPC port, and asks clients for theirs as it does."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from router.config import RouterConfig
from router.server import Router
from router.text.tokenize import Tokenizer
from tests.rpc.router_setup import BACKEND
from tests.rpc.secure_server import make_certificates
from tests.rpc.test_secure_services import put

REQUEST = b"GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def secure_router(tmp_path: Path, tls_dir: Path, *, asks: bool) -> AsyncIterator[str]:
    """The address of a secure router's HTTP port."""
    config = RouterConfig(
        model=str(tmp_path),
        schedulers=("127.0.0.1:1",),
        port=0,
        http_port=0,
        tls_dir=str(tls_dir),
        client_certificates=asks,
    )
    router = Router(config, Tokenizer(BACKEND, num_threads=1))
    await router.start()
    try:
        yield router.http_address
    finally:
        await router.stop()


def client_context(directory: Path, role: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "router" / "ca.crt"))
    if role:
        context.load_cert_chain(directory / role / "tls.crt", directory / role / "tls.key")
    return context


async def asked(address: str, context: ssl.SSLContext | None) -> tuple[bytes, str]:
    """Return the first line of an answer, and the serial number of the server's certificate."""
    host, _, port = address.rpartition(":")
    name = {"server_hostname": "quire-router"} if context else {}
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, **name)
    try:
        writer.write(REQUEST)
        line = await reader.readline()
        certificate = writer.get_extra_info("peercert") or {}
        return line.strip(), str(certificate.get("serialNumber"))
    finally:
        writer.close()


async def test_a_certificate_is_shown_and_replaced_for_the_next_connection(tmp_path) -> None:
    older, newer = (make_certificates(tmp_path / name).path for name in ("older", "newer"))
    directory = put(older / "router", tmp_path / "router")
    async with secure_router(tmp_path, directory, asks=False) as address:
        line, serial = await asked(address, client_context(older))
        assert line == b"HTTP/1.1 200 OK"
        with pytest.raises(ssl.SSLError):
            await asked(address, client_context(newer))
        put(newer / "router", directory)
        line, other = await asked(address, client_context(newer))
        assert line == b"HTTP/1.1 200 OK"
        assert other != serial
        assert await asked(address, None) == (b"", "None"), "nothing in the clear"


async def test_a_client_shows_a_certificate_of_its_role(tmp_path) -> None:
    ours, foreign = (make_certificates(tmp_path / name).path for name in ("ours", "foreign"))
    async with secure_router(tmp_path, ours, asks=True) as address:
        for role in ("client", "operator"):
            assert (await asked(address, client_context(ours, role)))[0] == b"HTTP/1.1 200 OK"
        assert (await asked(address, client_context(ours, "worker")))[0].startswith(b"HTTP/1.1 403")
        stranger = client_context(ours)
        stranger.load_cert_chain(foreign / "client" / "tls.crt", foreign / "client" / "tls.key")
        for context in (client_context(ours), stranger):
            # The client's half of the handshake is over when the server looks at its certificate.
            with suppress(ssl.SSLError, ConnectionError):
                assert (await asked(address, context))[0] == b""
