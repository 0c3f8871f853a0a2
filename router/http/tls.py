"""TLS of the HTTP port: the certificate of the gRPC port, looked at again for each connection."""

import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from quire.security.roles import Role
from quire.security.tls import KeyPair, TlsFiles


def server_context(tls: TlsFiles, client_certificates: bool) -> ssl.SSLContext:
    """Return what accepts connections, each with the certificate that the files have by then.

    Args:
        tls: of this process.
        client_certificates: whether clients must show one of a trusted authority.
    """
    used = tls.current()
    made = context = _context(used, client_certificates)

    def choose(connection: ssl.SSLObject, _name: str | None, _context_: ssl.SSLContext) -> None:
        nonlocal used, made
        pair = tls.current()
        if pair is not used:
            used, made = pair, _context(pair, client_certificates)
        connection.context = made

    # Called in every handshake, also of clients that name no server.
    context.sni_callback = choose
    return context


def roles_of(connection: ssl.SSLObject) -> frozenset[Role]:
    """Return the roles that a peer's certificate gives it: its DNS names, as over gRPC."""
    certificate = connection.getpeercert() or {}
    names = {str(entry[1]) for entry in certificate.get("subjectAltName", ()) if entry[0] == "DNS"}
    return frozenset(role for role in Role if role.value in names)


def _context(pair: KeyPair, client_certificates: bool) -> ssl.SSLContext:
    assert pair.certificate is not None and pair.key is not None, "of a server"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    # The module takes no bytes. What was read and checked is given to it, not the files again,
    # which may be other ones by now.
    with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
        context.load_cert_chain(certificate, key)
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pair.roots.decode())
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield the name of a file of this content, in memory where there are such files."""
    if sys.platform != "linux":
        with tempfile.NamedTemporaryFile() as file:  # for its owner alone
            file.write(content)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("tls")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
