"""TLS of the HTTP port: that of the gRPC port, or files of its own; always as they are by now."""

import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from quire.security.roles import Role
from quire.security.tls import KeyPair, TlsFiles
from router.front_options import HttpOptions

T = TypeVar("T")


def server_context(tls: TlsFiles, client_certificates: bool) -> ssl.SSLContext:
    """Return what accepts connections, each with the certificate that the files have by then.

    Args:
        tls: of this process.
        client_certificates: whether clients must show one of a trusted authority.
    """
    return _following(tls.current, lambda pair: _context(pair, client_certificates))


def file_context(options: HttpOptions) -> ssl.SSLContext:
    """Return what accepts connections by the files that options name; see `server_context`.

    A change that cannot be used is logged, and the last one that could stays in use.

    Raises:
        ConfigError: the files cannot be used now.
    """
    paths = (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)

    def stamps() -> tuple[object, ...]:
        found = []
        for path in filter(None, paths):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)

    def make(_: object) -> ssl.SSLContext:
        context = _bare_context()
        try:
            # A callback, since without one OpenSSL asks the terminal.
            context.load_cert_chain(str(paths[0]), paths[1], password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError among them
            why = getattr(error, "reason", None) or error
            raise ConfigError(
                "ssl_certfile: must be a certificate in PEM, with its key in ssl_keyfile or beside "
                f"it and without a password, got {paths[0]}: {why}"
            ) from None
        if options.ssl_cert_reqs:
            try:
                context.load_verify_locations(paths[2])
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"ssl_ca_certs: must be certificates in PEM, got {paths[2]}: {error}"
                ) from None
            context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
        return context

    return _following(stamps, make)


def _following(current: Callable[[], T], make: Callable[[T], ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context in which every connection gets the one that is made of what there is then.

    Args:
        current: returns what a context is made of, another object where that has changed.
        make: returns a context; ConfigError keeps the one before.
    """
    used = current()
    made = context = make(used)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal used, made
        found = current()
        if found != used:
            used = found
            try:
                made = make(found)
            except ConfigError as error:
                get_logger().warning("certificate_not_loaded", error=error.message)
        connection.context = made

    # Called in every handshake, also of clients that name no server.
    context.sni_callback = choose
    return context


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    return context


def roles_of(connection: ssl.SSLObject) -> frozenset[Role]:
    """Return the roles that a peer's certificate gives it: its DNS names, as over gRPC."""
    certificate = connection.getpeercert() or {}
    names = {str(entry[1]) for entry in certificate.get("subjectAltName", ()) if entry[0] == "DNS"}
    return frozenset(role for role in Role if role.value in names)


def _context(pair: KeyPair, client_certificates: bool) -> ssl.SSLContext:
    assert pair.certificate is not None and pair.key is not None, "of a server"
    context = _bare_context()
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
