"""Certificate, key and trusted roots of this process, from files that may change while it runs.

Their names are those that cert-manager writes: `ca.crt`, `tls.crt`, `tls.key`. They are read again
for each new connection. Connections that are open keep what they were made with: no stream breaks
because a certificate is replaced.
"""

import ssl
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from quire.security.roles import Role

ROOTS, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
# Their holders may trust a server without having a certificate to show.
_USERS = frozenset({Role.CLIENT, Role.OPERATOR})
# A reader that finds the files in the middle of a change looks again.
_READS = 5
WARN_EVERY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """What the files held at one moment, checked.

    Attributes:
        roots: certificates of the trusted authorities, PEM.
        certificate: of this process, PEM, with those between it and a root; None for a client that
            shows none.
        key: that belongs to it, PEM.
        not_before: from when it is valid.
        not_after: until when it is valid.
    """

    roots: bytes
    certificate: bytes | None
    key: bytes | None
    not_before: datetime
    not_after: datetime

    @property
    def seconds_left(self) -> float:
        """How long it is still valid; negative once it has expired."""
        return (self.not_after - datetime.now(UTC)).total_seconds()

    @property
    def expires_soon(self) -> bool:
        """Whether less than a third of its life is left: what renews it should have, by then."""
        return self.seconds_left < (self.not_after - self.not_before).total_seconds() / 3


class TlsFiles:
    """The certificate of this process, as its files have it now.

    If the files are invalid, for example half written, the last valid ones stay in use, and the log
    has a warning. May be used from any thread.

    Args:
        directory: that holds the three files, or one that `quire certs` wrote, with a directory for
            each role.
        role: of this process.

    Raises:
        ConfigError: they cannot be used; names file and cause.
    """

    def __init__(self, directory: str | Path, role: Role) -> None:
        of_role = Path(directory) / role.directory
        self.directory = of_role if of_role.is_dir() else Path(directory)
        self.role = role
        self._lock = threading.Lock()
        self._content = self._read()
        self._pair = check_files(self.directory, self._content, role in _USERS)
        self._checked = time.monotonic()
        self._warned = -WARN_EVERY_S
        self._last_error = ""
        self._warn_of_expiry()

    def current(self, max_age_s: float = 0.0) -> KeyPair:
        """Return what is to be used for a new connection.

        Args:
            max_age_s: look at the files only if that was not done for so long.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._checked >= max_age_s:
                self._checked = now
                self._reload()
                self._warn_of_expiry()
            return self._pair

    @property
    def certificate_not_after(self) -> float:
        """When the certificate in use expires, in seconds since 1970; nan without one."""
        pair = self._pair
        return pair.not_after.timestamp() if pair.certificate else float("nan")

    def server_credentials(self, client_certificates: bool) -> grpc.ServerCredentials:
        """Return credentials of a server that look at the files for each new connection.

        Args:
            client_certificates: whether clients must show one.
        """
        used = self.current()

        def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
            roots = pair.roots if client_certificates else None
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], roots)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            pair = self.current()
            if pair is used:
                return None
            used = pair
            return configuration(pair)

        return grpc.dynamic_ssl_server_credentials(configuration(used), fetch, client_certificates)

    def _read(self) -> tuple[bytes | None, ...]:
        """Read the files until nothing changes meanwhile; None for one that is not there."""
        before: tuple[bytes | None, ...] = ()
        for _ in range(_READS):
            content = tuple(_read(self.directory / name) for name in (ROOTS, CERTIFICATE, KEY))
            if content == before:
                break
            before = content
        return before

    def _reload(self) -> None:
        try:
            content = self._read()
            if content == self._content:
                self._last_error = ""
                return
            # Again each time until it succeeds: a certificate may be valid only from soon on.
            pair = check_files(self.directory, content, self.role in _USERS)
        except ConfigError as error:
            if error.message != self._last_error:
                self._last_error = error.message
                get_logger().warning("certificate_not_loaded", error=error.message)
            return
        self._content, self._pair, self._last_error = content, pair, ""
        self._warned = -WARN_EVERY_S
        get_logger().info(
            "certificate_loaded",
            directory=str(self.directory),
            not_after=self._pair.not_after.isoformat(),
        )

    def _warn_of_expiry(self) -> None:
        pair, now = self._pair, time.monotonic()
        if not pair.certificate or not pair.expires_soon or now - self._warned < WARN_EVERY_S:
            return
        self._warned = now
        get_logger().warning(
            "certificate_expires",
            file=str(self.directory / CERTIFICATE),
            not_after=pair.not_after.isoformat(),
            days_left=round(pair.seconds_left / timedelta(days=1).total_seconds(), 2),
        )


def open_tls(tls_dir: str | Path | None, role: Role) -> TlsFiles | None:
    """Return the certificate files of a directory for a role; None where there is no directory.

    Raises:
        ConfigError: they cannot be used; names file and cause.
    """
    return None if tls_dir is None else TlsFiles(tls_dir, role)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"tls_dir: {path} cannot be read: {error.strerror}") from error


def check_files(
    directory: Path, content: tuple[bytes | None, ...], certificate_is_optional: bool
) -> KeyPair:
    """Return the content of the three files as what it is.

    Args:
        directory: of the files, for messages.
        content: of ca.crt, tls.crt and tls.key; None for a missing one.
        certificate_is_optional: whether ca.crt alone will do.

    Raises:
        ConfigError: one is missing or no PEM, the key does not match the certificate, or the
            certificate is not valid now; names file and cause.
    """
    roots, certificate, key = content
    names = dict(zip((ROOTS, CERTIFICATE, KEY), content, strict=True))
    if certificate_is_optional and certificate is None and key is None:
        names = {ROOTS: roots}
    for name, found in names.items():
        if found is None:
            raise ConfigError(f"tls_dir: {directory / name} does not exist")
    # Not at the top: commands that never see a certificate would be slower to start.
    try:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError:
        return _checked_by_openssl(directory, content)
    for name, found in names.items():
        if name != KEY:
            try:
                x509.load_pem_x509_certificates(found or b"")
            except ValueError:
                raise ConfigError(f"tls_dir: {directory / name} holds no PEM certificate") from None
    assert roots is not None, "checked above"
    if certificate is None or key is None:
        return KeyPair(roots, None, None, *2 * (datetime.max.replace(tzinfo=UTC),))
    leaf = x509.load_pem_x509_certificates(certificate)[0]
    try:
        public_key = serialization.load_pem_private_key(key, None).public_key()
        matches = leaf.public_key() == public_key
    except (ValueError, TypeError):  # TypeError: it is encrypted
        raise ConfigError(
            f"tls_dir: {directory / KEY} holds no PEM key without a password"
        ) from None
    except UnsupportedAlgorithm as error:
        raise ConfigError(f"tls_dir: {directory / KEY} is of no known kind: {error}") from None
    if not matches:
        raise ConfigError(
            f"tls_dir: {directory / KEY} does not match the certificate in {CERTIFICATE}"
        )
    pair = KeyPair(roots, certificate, key, leaf.not_valid_before_utc, leaf.not_valid_after_utc)
    if pair.seconds_left <= 0:
        raise ConfigError(
            f"tls_dir: {directory / CERTIFICATE} has expired on {pair.not_after:%Y-%m-%d %H:%M} UTC"
        )
    if pair.not_before > datetime.now(UTC):
        raise ConfigError(
            f"tls_dir: {directory / CERTIFICATE} is valid only from "
            f"{pair.not_before:%Y-%m-%d %H:%M} UTC"
        )
    return pair


def _checked_by_openssl(directory: Path, content: tuple[bytes | None, ...]) -> KeyPair:
    """Return the content of the three files, checked as far as Python alone can.

    It does not say when a certificate is valid: for the SDK alone, which learns from the server
    that its own has expired.
    """
    roots, certificate, key = content
    assert roots is not None, "checked before"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=roots.decode("ascii", "replace"))
    except ssl.SSLError:
        raise ConfigError(f"tls_dir: {directory / ROOTS} holds no PEM certificate") from None
    if certificate is not None and key is not None:
        try:
            context.load_cert_chain(directory / CERTIFICATE, directory / KEY, password=b"")
        except (ssl.SSLError, OSError, ValueError):
            raise ConfigError(
                f"tls_dir: {directory / KEY} does not match the certificate in {CERTIFICATE}"
            ) from None
    first, last = (each.replace(tzinfo=UTC) for each in (datetime.min, datetime.max))
    return KeyPair(roots, certificate, key, first, last)
